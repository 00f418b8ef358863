"""Why Trainium targets have no compile-only devices."""

from typing import Any

#: What a plan says of a Trainium target.
NOT_COMPILED = (
    "not compiled: AWS publishes no compiler wheel for machines without Trainium; "
    "planned from the HLO and the device's figures"
)


def topology(target: Any) -> None:
    """Returns None for every target: see NOT_COMPILED."""
    del target
