"""The optax learner: optimizers, schedules, clipping, rules by parameter path."""
