"""Flash as tests run it: in Pallas's interpreter."""

from typing import ClassVar

from kanawa_backends_tpu.kernels.attention.flash.kernel import FlashAttention


class Interpreted(FlashAttention):
    """The same kernel without a TPU, in blocks small enough that there are several, of several parts and groups."""

    largest_block: ClassVar[int] = 256
    largest_part: ClassVar[int] = 128
    group: ClassVar[tuple[int, int]] = (128, 128)
    group_backward: ClassVar[tuple[int, int]] = (128, 128)
    interpret: ClassVar[bool] = True
