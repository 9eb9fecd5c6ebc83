"""Batches: a pure function of (seed, step) that visits every character once an epoch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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
