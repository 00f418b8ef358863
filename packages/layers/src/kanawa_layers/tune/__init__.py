"""Tuning and quantisation: adapters and weight forms."""
