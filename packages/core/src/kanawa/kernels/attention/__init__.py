"""Attention: problem, reference, blockwise kernel, gradient and the merging of blocks.

The public call is `kanawa.kernels.attention`, defined in `dispatch`.
"""
