"""Flash in Pallas's interpreter on its operation's own problems and on generated ones, for a worker of its own."""

from typing import ClassVar

from kanawa.kernels.operation import Kernel
from kanawa.testing.kernel import KernelConformance

from .interpreted_flash import Interpreted


class TestFlash(KernelConformance):
    """On the operation's own problems, and on generated ones."""

    narrow: ClassVar = {
        **{"mode": ("train", "prefill"), "dtype": ("float32", "bfloat16"), "batch": (1, 2), "page_size": (None,)},
        # A bias that all keys of a query share has no gradient without sinks, and what is left of it is rounding.
        **{"bias": (None, "bhqk", "hqk", "bk", "qk"), "ragged_sequences": (None,)},
    }
    generated = 8

    def kernel(self) -> Kernel:
        return Interpreted()
