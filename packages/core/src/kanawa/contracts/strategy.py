"""What a parallelism contributes: two ordered tables from logical to mesh axes."""

import abc

from kanawa.arrays.plan import Distributed
from kanawa.arrays.rules import Rules
from kanawa.config import Configurable


class Strategy(Configurable):
    """One parallelism, chosen in `execution.strategies`; several compose in the order they are listed."""

    @abc.abstractmethod
    def param_rules(self) -> Rules:
        """Returns rules for parameters and everything shaped like them."""

    @abc.abstractmethod
    def activation_rules(self) -> Rules:
        """Returns rules for activations, batches and caches."""

    def distributed(self) -> tuple[Distributed, ...]:
        """Returns what runs operations over shards where rules alone can't: none, by default."""
        return ()
