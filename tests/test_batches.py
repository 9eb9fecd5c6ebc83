"""Batches: a pure function of (seed, step) that visits every character once an epoch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data import batches as module
from data.batches import Batches


def test_inputs_and_targets_are_windows_of_the_text() -> None:
    batches = Batches(torch.arange(1000, dtype=torch.int32), block_size=8, batch_size=5, seed=1)
    for step in range(50):
        windows = batches.windows(step)
        assert windows.shape == (5, 9)
        assert windows.dtype == torch.int64
        assert torch.equal(windows - windows[:, :1], torch.arange(9).expand(5, 9))


def test_a_step_depends_on_seed_and_step_alone() -> None:
    ids = torch.arange(1000)
    straight = Batches(ids, 8, 5, seed=1)
    later = Batches(ids, 8, 5, seed=1)
    forward = [straight.windows(step) for step in range(100)]
    backward = [later.windows(step) for step in reversed(range(100))]
    assert all(torch.equal(a, b) for a, b in zip(forward, reversed(backward), strict=True))
    assert not torch.equal(forward[0], Batches(ids, 8, 5, seed=2).windows(0))


@given(
    characters=st.integers(2, 400), block_size=st.integers(1, 40), batch_size=st.integers(1, 7), seed=st.integers(0, 9)
)
def test_an_epoch_has_every_character_once_but_for_the_ends(
    characters: int, block_size: int, batch_size: int, seed: int
) -> None:
    check_epochs(characters, block_size, batch_size, seed)


@pytest.mark.parametrize(("characters", "block_size", "batch_size"), [(2, 1, 1), (100, 7, 3), (390, 16, 5), (57, 8, 7)])
def test_so_has_one_whose_order_is_computed_place_by_place(
    monkeypatch: pytest.MonkeyPatch, characters: int, block_size: int, batch_size: int
) -> None:
    monkeypatch.setattr(module, "MOST_LISTED", 0)
    check_epochs(characters, block_size, batch_size, seed=3)


def check_epochs(characters: int, block_size: int, batch_size: int, seed: int) -> None:
    if characters < block_size + 1:
        with pytest.raises(ValueError, match="hold no window"):
            Batches(torch.zeros(characters), block_size, batch_size, seed)
        return
    batches = Batches(torch.zeros(characters), block_size, batch_size, seed)
    per_epoch = batches.windows_per_epoch
    starts = torch.cat([batches.starts(step) for step in range(2 * per_epoch // batch_size + 1)]).numpy()
    for epoch in range(2):
        visited = starts[epoch * per_epoch : (epoch + 1) * per_epoch]
        targets = (visited[:, None] + np.arange(1, block_size + 1)).ravel()
        assert len(targets) == len(set(targets))
        assert targets.min() >= 1
        assert targets.max() <= characters - 1
        assert characters - 1 - len(targets) < 2 * block_size


def test_epochs_differ_in_order_and_offset() -> None:
    batches = Batches(torch.zeros(10_000), 16, 1, seed=0)
    epochs = [batches._draw_epoch(epoch) for epoch in range(20)]
    offsets = {int(epoch.min()) % 16 for epoch in epochs}
    assert len(offsets) > 8
    assert not np.array_equal(epochs[0] - epochs[0].min(), epochs[1] - epochs[1].min())


def test_every_alignment_of_windows_comes_up() -> None:
    batches = Batches(torch.zeros(200), 8, 1, seed=0)
    assert {int(batches._draw_epoch(epoch).min()) % 8 for epoch in range(200)} == set(range(8))


@pytest.mark.parametrize("count", [1, 2, 5, 1000, (1 << 16) + 1])
def test_an_order_that_is_computed_place_by_place_is_a_random_one(count: int) -> None:
    keys = np.random.default_rng(count).integers(2**64, size=6, dtype=np.uint64)
    places = np.arange(count, dtype=np.uint64)
    order = module.shuffled(places, count, keys)
    assert np.array_equal(np.sort(order), places)
    assert np.array_equal(module.shuffled(places[::7], count, keys), order[::7])
    if count >= 1000:
        # Correlations of a shuffled list have a standard deviation of 1 / sqrt(count).
        assert abs(np.corrcoef(places, order)[0, 1]) < 4 / count**0.5
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 4 / count**0.5
        assert not np.array_equal(order, module.shuffled(places, count, keys + np.uint64(1)))


def test_a_text_too_long_for_a_device_stays_and_its_windows_go_there(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.arange(1000)
    assert Batches(ids, 8, 5, seed=1, device="meta").ids.device.type == "meta"
    monkeypatch.setattr(module, "MOST_ON_DEVICE", 10)
    batches = Batches(ids, 8, 5, seed=1, device="meta")
    assert batches.ids is ids
    assert batches.windows(0).device.type == "meta"
