"""How often a run evaluates and saves, and what it looks at meanwhile."""

from kanawa.config import Config, Count, Positive, Size
from kanawa.contracts import DataSource

from kanawa_runtime.train.task_slot import TaskSuite


class EvaluationPolicy(Config):
    """Evaluates on the held-out split every `every_steps`, at most `max_batches` then, and at the end, `final_batches`.

    None is all of it. `sets` are scored beside it, each read whole and under its name, and so are `tasks`.
    `trigram_baseline` also scores a byte-trigram table, counted on the training text, at the end.
    """

    every_steps: Size = 100
    max_batches: Size | None = None
    final_batches: Size | None = None
    trigram_baseline: bool = False
    sets: dict[str, DataSource.Config] = {}
    tasks: TaskSuite | None = None


class DivergencePolicy(Config):
    """What a run does about a loss that is not finite, or a spike: it stops, unless it may go back.

    A spike is a loss that lies above the median of the last `spike_window` by `spike_factor` times their median
    deviation (None: nothing is a spike); it is an event. Up to `rewinds` times a run goes back to its newest checkpoint
    and leaves out the batches since, then ends with the code that means "start me again". An update with a gradient
    that is not finite is skipped by `learner.skip_nonfinite`.
    """

    rewinds: Count = 0
    spike_factor: Positive | None = None
    spike_window: Size = 100


class HealthPolicy(Config):
    """What is looked at besides the loss.

    Every `check_replicas_every` steps replicas of the state are compared (None: never), which keeps a second copy of
    the state during such a step. In a gang, every `pace_window` steps each process says how long its own part of a step
    takes; one that is slower than the median by `slow_share` of a step, three times in a row, is a straggler.
    """

    check_replicas_every: Size | None = None
    pace_window: Size = 10
    slow_share: Positive = 0.2


class CheckpointPolicy(Config):
    """Saves every `every_steps`, at the end and on SIGTERM; keeps the newest, and every `keep_every_steps` for good.

    A run whose saves fail goes on, unless `most_failed_saves` in a row have failed, or were
    left out because the one before was still written, or nothing was saved for more than
    `most_unsaved_minutes` when a save is due: then it ends with the code of a lost storage.
    """

    every_steps: Size = 100
    keep_last: Size = 3
    keep_every_steps: Size | None = None
    most_failed_saves: Size | None = None
    most_unsaved_minutes: Positive | None = None
