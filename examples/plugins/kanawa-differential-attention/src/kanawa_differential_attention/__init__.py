"""Differential attention for Kanawa."""
