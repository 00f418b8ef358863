"""Diagonal recurrence."""
