"""Kernels of the operation quantized_matmul, one file each."""
