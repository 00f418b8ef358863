"""A strategy's implementation of an operation over shards, for operations that sharding rules alone can't split."""

import abc
from typing import ClassVar


class Distributed(abc.ABC):
    """An implementation of an operation over the shards of an axis that each shard's result depends on as a whole.

    Instances are part of the execution plan and thus of jit's cache key: make them frozen dataclasses.
    """

    #: The operation: "attention" (kanawa.kernels.attention.over_shards) or "experts" (TokenDispatcher).
    operation: ClassVar[str]
    #: Its name in the kernel manifest, such as "ring".
    name: ClassVar[str]
