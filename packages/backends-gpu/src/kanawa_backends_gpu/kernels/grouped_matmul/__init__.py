"""Kernels of the operation grouped_matmul, one file each."""
