"""Attention: problem, reference, blockwise kernel, gradient and the merging of blocks."""

from kanawa.kernels.attention.dispatch import attention as attention
