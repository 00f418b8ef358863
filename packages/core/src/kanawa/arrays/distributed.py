"""What a strategy brings for an operation that tables of axes alone can't split, found through the execution plan."""

import abc
from typing import ClassVar


class Distributed(abc.ABC):
    """A way to run an operation over the shards of an axis that one shard's computation needs whole.

    Instances are part of the execution plan and thus of jit's cache key: make them frozen dataclasses.
    """

    #: What it distributes: "attention" (kanawa.kernels.attention.over_shards) or "experts" (TokenDispatcher).
    operation: ClassVar[str]
    #: What the kernel manifest calls it, such as "ring".
    name: ClassVar[str]
