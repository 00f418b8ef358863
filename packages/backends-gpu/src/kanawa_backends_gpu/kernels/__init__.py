"""Kernels for NVIDIA GPUs, one file each, in a folder per operation."""
