"""Attention layers and their caches."""
