"""Differential attention for Sashimono."""
