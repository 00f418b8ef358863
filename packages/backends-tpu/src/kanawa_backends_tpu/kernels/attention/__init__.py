"""Attention on TPUs."""
