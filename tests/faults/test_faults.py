"""Runs that come to harm and end as if they had not, in a short form; `python -m tests.faults` makes the long one."""

from pathlib import Path

import pytest

from tests.faults.long_runs import random_kills, soak
from tests.faults.proof import Proof


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Proof:
    return Proof(tmp_path_factory.mktemp("faults"), seed=1)


def some(places: list[str], number: int) -> list[int]:
    """Places spread evenly over a run, its first and its last among them."""
    return [place * (len(places) - 1) // (number - 1) for place in range(number)]


def test_a_kill_costs_nothing(proof: Proof) -> None:
    assert proof.kills(some(proof.places, 6)) == 6


def test_kill_upon_kill_costs_nothing(proof: Proof) -> None:
    assert proof.chains(1) >= 1


def test_a_signal_saves_and_the_run_goes_on(proof: Proof) -> None:
    assert proof.interruptions(some(proof.places, 5)[1:], "interrupted") == 4
    assert proof.interruptions(some(proof.places, 3)[1:2], "terminated") == 1


def test_a_spoilt_file_costs_nothing(proof: Proof) -> None:
    assert proof.corruptions(6) == 6


def test_without_a_whole_state_a_run_is_refused_and_left_alone(proof: Proof) -> None:
    assert proof.both_states_gone(2) == 2


def test_every_flipped_bit_is_seen(proof: Proof) -> None:
    assert proof.flips(300) == 300


def test_a_limit_on_the_size_of_files_costs_nothing(proof: Proof) -> None:
    assert proof.file_size_limits(3) == 3


def test_a_full_disk_costs_nothing(proof: Proof) -> None:
    if not proof.full_disks(3):
        pytest.skip("no small file system can be mounted here")


def test_a_folder_that_vanishes_is_named(proof: Proof) -> None:
    assert proof.vanished_folders(some(proof.places, 4)[1:3]) == 2


def test_a_folder_without_permission_is_named(proof: Proof) -> None:
    assert proof.no_permission() == 2


def test_kills_at_random_moments_cost_nothing(tmp_path: Path) -> None:
    assert random_kills(tmp_path, number=3, steps=80, seed=1) >= 1


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_long_run_takes_no_more_memory_at_its_end(tmp_path: Path) -> None:
    memory, files = soak(tmp_path, steps=2500)
    assert memory < 1.02
    assert files <= 0
