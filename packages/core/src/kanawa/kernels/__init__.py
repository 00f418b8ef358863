"""Operations and their kernels: what to compute, who can compute it here, and why the others can't.

Each operation, such as `attention`, is both a subpackage and, here, the call. Binding the calls now, not on first use,
keeps Python from putting the subpackages in their place.
"""

from kanawa.kernels.attention.dispatch import attention as attention
from kanawa.kernels.choice import KernelChoice as KernelChoice
from kanawa.kernels.diagonal_recurrence.dispatch import diagonal_recurrence as diagonal_recurrence
from kanawa.kernels.grouped_matmul.dispatch import grouped_matmul as grouped_matmul
from kanawa.kernels.linear_recurrence.dispatch import linear_recurrence as linear_recurrence
from kanawa.kernels.masks import CAUSAL as CAUSAL
from kanawa.kernels.masks import FULL as FULL
from kanawa.kernels.masks import MaskSpec as MaskSpec
from kanawa.kernels.masks import sliding_window as sliding_window
from kanawa.kernels.operation import Kernel as Kernel
from kanawa.kernels.operation import Operation as Operation
from kanawa.kernels.quantized_matmul.dispatch import quantized_matmul as quantized_matmul
from kanawa.kernels.softmax_cross_entropy.dispatch import (
    softmax_cross_entropy as softmax_cross_entropy,
)
from kanawa.kernels.token_exchange.dispatch import token_exchange as token_exchange
from kanawa.kernels.verdict import Verdict as Verdict
