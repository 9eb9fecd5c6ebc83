"""Runs that come to harm and end as if they had not, in a short form; `python -m tests.faults` makes the long one."""

from pathlib import Path

import pytest

from tests.faults.long_runs import random_kills, soak
from tests.faults.proof import Proof


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Proof:
    return Proof(tmp_path_factory.mktemp("faults"))


def some(places: list[str], number: int) -> list[int]:
    """Places spread evenly over a run, its first and its last among them."""
    return [place * (len(places) - 1) // (number - 1) for place in range(number)]


def test_a_kill_costs_nothing(proof: Proof) -> None:
    writing = [place for place, name in enumerate(proof.places) if name == "in the middle of write"]
    assert proof.each(proof.killed, [*some(proof.places, 6), writing[len(writing) // 2]]) == 7


def test_kill_upon_kill_costs_nothing(proof: Proof) -> None:
    assert proof.killed_again_and_again([130, 30, 60, 150]) == 4


def test_a_signal_saves_and_the_run_goes_on(proof: Proof) -> None:
    assert proof.each(proof.interrupted, some(proof.places, 5)[1:]) == 4
    assert proof.terminated(len(proof.places) // 2) == 1


def test_a_spoilt_file_costs_nothing(proof: Proof) -> None:
    cases = [
        ("last.pt", "one bit", 5), ("last.pt", "cut short", 10), ("previous.pt", "a block of zeros", 7), ("best.pt", "gone", 4),
        ("config.yaml", "empty", 5), ("summary.json", "another file", 7),
    ]  # fmt: skip
    assert proof.each(proof.spoilt, cases) == len(cases)


def test_without_a_whole_state_a_run_is_refused_and_left_alone(proof: Proof) -> None:
    assert proof.each(proof.states_spoilt, ["one bit", "gone"]) == 2


def test_every_flipped_bit_is_seen(proof: Proof) -> None:
    assert sum(map(proof.flipped, range(300))) == 300


def test_a_limit_on_the_size_of_files_costs_nothing(proof: Proof) -> None:
    assert proof.each(proof.file_size_limited, [1, 20_000, 100_000]) == 3


def test_a_full_disk_costs_nothing(proof: Proof) -> None:
    if not proof.each(proof.disk_filled, [0, 175_000, 250_000]):
        pytest.skip("no small file system can be mounted here")


def test_a_folder_that_vanishes_is_named(proof: Proof) -> None:
    assert proof.each(proof.folder_removed, some(proof.places, 4)[1:3]) == 2


@pytest.mark.parametrize("locked", ["run", "."])
def test_a_folder_without_permission_is_named(proof: Proof, locked: str) -> None:
    assert proof.without_permission(locked) == 1


def test_kills_at_random_moments_cost_nothing(tmp_path: Path) -> None:
    assert random_kills(tmp_path, number=3, steps=80, seed=1) >= 1


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_long_run_takes_no_more_memory_at_its_end(tmp_path: Path) -> None:
    memory, files = soak(tmp_path, steps=2500)
    assert memory < 1.02
    assert files <= 0
