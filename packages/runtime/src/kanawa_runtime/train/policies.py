"""How often a run evaluates and saves."""

from kanawa.config import Config, Size


class EvaluationPolicy(Config):
    """Evaluates on the held-out split every `every_steps`, at most `max_batches` then, and at the end, `final_batches`.

    None is all of it. `trigram_baseline` also scores a byte-trigram table, counted on the training text, at the end.
    """

    every_steps: Size = 100
    max_batches: Size | None = None
    final_batches: Size | None = None
    trigram_baseline: bool = False


class CheckpointPolicy(Config):
    """Saves every `every_steps`, at the end and on SIGTERM; keeps the newest, and every `keep_every_steps` for good."""

    every_steps: Size = 100
    keep_last: Size = 3
    keep_every_steps: Size | None = None
