"""AdamW and its schedules (Loshchilov and Hutter 2019, arXiv 1711.05101), from optax."""

import optax

from slipstream.config.schema import OptimizerSection, WarmStartSection


def reinforcement_schedule(config: OptimizerSection) -> optax.Schedule:
    """Learning rate by optimizer step: linear rise over the warm-up, then constant. Step 0 already moves."""
    return optax.schedules.warmup_constant_schedule(
        config.learning_rate / (config.warmup_steps + 1), config.learning_rate, config.warmup_steps
    )


def warm_start_schedule(config: WarmStartSection) -> optax.Schedule:
    """Linear rise, then a cosine over all supervised stages down to a tenth of the peak."""
    total = sum(stage.steps for stage in config.stages)
    return optax.schedules.warmup_cosine_decay_schedule(
        config.learning_rate / (config.warmup_steps + 1),
        config.learning_rate,
        config.warmup_steps,
        max(total, config.warmup_steps + 1),
        config.learning_rate / 10,
    )


def adamw(schedule: optax.Schedule, *, b1: float, b2: float, weight_decay: float, clip_norm: float) -> optax.GradientTransformation:
    """Global-norm clip, then AdamW."""
    return optax.chain(optax.clip_by_global_norm(clip_norm), optax.adamw(schedule, b1=b1, b2=b2, weight_decay=weight_decay))
