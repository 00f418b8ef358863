"""Measuring kernels, and writing the tuning table."""
