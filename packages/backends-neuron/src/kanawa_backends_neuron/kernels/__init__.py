"""Kernels for Trainium, written in NKI; unverified on hardware."""
