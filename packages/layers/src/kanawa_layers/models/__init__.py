"""Whole models, their heads and losses."""
