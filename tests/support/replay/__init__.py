"""Reads the pages of the documentation and does what they say."""
