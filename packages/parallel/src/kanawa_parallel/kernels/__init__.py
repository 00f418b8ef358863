"""Kernels of operations that only distributed programs call."""
