"""The course of the learning rate: above zero at the first step, at its floor at the last, and as drawn in between."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.schema import OptimizerConfig
from training.schedule import lr_factor


def test_the_line_by_hand() -> None:
    config = OptimizerConfig(warmup_steps=3, cooldown_fraction=0.5, final_lr_fraction=0.1)
    factors = [lr_factor(step, 20, config) for step in range(20)]
    assert factors[:3] == [0.25, 0.5, 0.75]
    assert factors[3:10] == [1] * 7
    assert factors[10:] == pytest.approx([0.1 + 0.9 * left / 10 for left in range(9, -1, -1)])


def test_the_cosine_by_hand() -> None:
    config = OptimizerConfig(warmup_steps=0, cooldown_fraction=1, final_lr_fraction=0, schedule="cosine")
    assert [lr_factor(step, 4, config) for step in range(4)] == pytest.approx(
        [(1 - math.cos(math.pi * left)) / 2 for left in (0.75, 0.5, 0.25, 0)]
    )


def test_constant_stays() -> None:
    config = OptimizerConfig(warmup_steps=0, schedule="constant")
    assert {lr_factor(step, 9, config) for step in range(9)} == {1.0}


@given(
    max_steps=st.integers(1, 500),
    warmup=st.integers(0, 100),
    cooldown=st.floats(0, 1),
    floor=st.floats(0.001, 1),
    schedule=st.sampled_from(["linear", "cosine", "constant"]),
)
def test_it_starts_above_zero_and_ends_at_the_floor(
    max_steps: int, warmup: int, cooldown: float, floor: float, schedule: str
) -> None:
    config = OptimizerConfig(
        warmup_steps=warmup, cooldown_fraction=cooldown, final_lr_fraction=floor, schedule=schedule
    )
    factors = [lr_factor(step, max_steps, config) for step in range(max_steps)]
    assert all(0 < factor <= 1 for factor in factors)
    if schedule != "constant" and cooldown * max_steps >= 1:
        assert factors[-1] == pytest.approx(min(floor, max_steps / (warmup + 1)))
    rising = factors[: warmup + 1]
    assert factors[factors.index(max(factors)) :] == sorted(factors[factors.index(max(factors)) :], reverse=True)
    assert rising[: rising.index(max(rising)) + 1] == sorted(rising[: rising.index(max(rising)) + 1])
