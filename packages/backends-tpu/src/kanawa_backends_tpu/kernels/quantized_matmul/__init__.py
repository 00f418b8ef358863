"""Quantised matrix products on TPUs."""
