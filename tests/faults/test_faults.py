"""Runs that come to harm and end as if they had not, in a short form; `python -m tests.faults` makes the long one."""

from pathlib import Path

import pytest

from tests.faults.long_runs import random_kills, soak
from tests.faults.proof import Proof


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Proof:
    return Proof(tmp_path_factory.mktemp("faults"))


def test_a_kill_costs_nothing(proof: Proof) -> None:
    cases = [
        0,  # before the lock
        proof.place("in the middle of write", after_step=6),  # of a state
        proof.place("after replace", after_step=9),  # a new state, and the one before has not its name yet
        proof.place("before step", after_step=9),  # behind a save between two evaluations
        proof.place("before append_text", after_step=8),  # an evaluation is saved, and its sample is not written
        proof.place("after append_text", after_step=4),
        len(proof.places) - 1,
    ]
    assert proof.each(proof.killed, cases) == len(cases)


def test_kill_upon_kill_costs_nothing(proof: Proof) -> None:
    first, second = (proof.place("in the middle of write", after_step=step) for step in (6, 2))
    assert proof.killed_again_and_again([first, 30, second, 50]) == 4


def test_a_signal_saves_and_the_run_goes_on(proof: Proof) -> None:
    cases = [
        proof.place("before step", after_step=1),
        proof.place("before step", after_step=5),
        proof.place("before _nats", after_step=8),  # in an evaluation
        proof.place("in the middle of write", after_step=3),
    ]
    assert proof.each(proof.interrupted, cases) == len(cases)
    assert proof.terminated(proof.place("before step", after_step=7)) == 1


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
    assert proof.each(proof.folder_removed, [proof.place("before step", step) for step in (1, 9)]) == 2


@pytest.mark.parametrize("locked", ["run", "."])
def test_a_folder_without_permission_is_named(proof: Proof, locked: str) -> None:
    assert proof.without_permission(locked) == 1


def test_kills_at_random_moments_cost_nothing(tmp_path: Path) -> None:
    assert random_kills(tmp_path, number=3, steps=140, seed=1) >= 1


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_long_run_takes_no_more_memory_at_its_end(tmp_path: Path) -> None:
    memory, files = soak(tmp_path, steps=1500)
    assert memory < 1.02
    assert files <= 0
