"""Operations and their kernels: what to compute, who can compute it here, and why the others can't.

Each operation is a module or a package and is called from there: `from kanawa.kernels.attention import attention`.
"""

from kanawa.kernels.choice import KernelChoice as KernelChoice
from kanawa.kernels.masks import CAUSAL as CAUSAL
from kanawa.kernels.masks import FULL as FULL
from kanawa.kernels.masks import MaskSpec as MaskSpec
from kanawa.kernels.masks import sliding_window as sliding_window
from kanawa.kernels.operation import Kernel as Kernel
from kanawa.kernels.operation import Operation as Operation
from kanawa.kernels.operation import Problem as Problem
from kanawa.kernels.verdict import Verdict as Verdict
