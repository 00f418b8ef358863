"""Kernels in plain JAX, for any device: faster or smaller than core's references."""
