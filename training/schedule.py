"""The course of the learning rate, a pure function of the step."""

import math

from configs.schema import OptimizerConfig


def lr_factor(step: int, max_steps: int, config: OptimizerConfig) -> float:
    """What the highest learning rates are multiplied with at step 0, 1, ..., max_steps - 1.

    Linear warm-up whose first step is above zero, then 1, then over the last cooldown_fraction of all steps a line or
    half a cosine down to final_lr_fraction, reached at the last step.
    """
    warmup = min(1.0, (step + 1) / (config.warmup_steps + 1))
    cooldown_steps = config.cooldown_fraction * max_steps
    if config.schedule == "constant" or cooldown_steps < 1:
        return warmup
    left = min(1.0, (max_steps - 1 - step) / cooldown_steps)  # 1 before the cool-down, 0 at the last step
    if config.schedule == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return min(warmup, config.final_lr_fraction + (1 - config.final_lr_fraction) * left)
