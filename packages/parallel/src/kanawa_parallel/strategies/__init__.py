"""Strategies: one parallelism a file, two ordered tables each."""
