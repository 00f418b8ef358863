"""No positions: a model that learns order from the causal mask alone."""

from kanawa.contracts import Positions


class NoPositions(Positions):
    """Leaves queries, keys and logits as they are."""
