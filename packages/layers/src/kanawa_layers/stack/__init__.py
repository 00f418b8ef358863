"""Blocks and stacks of them."""
