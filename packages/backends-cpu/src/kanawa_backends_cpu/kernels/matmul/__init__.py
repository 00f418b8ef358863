"""Matmul kernels of a CPU."""
