"""How often a run evaluates and saves."""

from sashimono.config import Config


class EvaluationPolicy(Config):
    """Evaluates on the held-out split every `every_steps` and at the end; at most `max_batches` (None: all)."""

    every_steps: int = 100
    max_batches: int | None = None


class CheckpointPolicy(Config):
    """Saves every `every_steps`, at the end and on SIGTERM; keeps the newest, and every `keep_every_steps` for good."""

    every_steps: int = 100
    keep_last: int = 3
    keep_every_steps: int | None = None
