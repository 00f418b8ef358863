"""Kernels for TPUs, one file each, in a folder per operation."""
