"""Kernels compiled alone, for devices that needn't be here."""
