"""Attention on CPUs: blockwise for dense keys, and over pages."""
