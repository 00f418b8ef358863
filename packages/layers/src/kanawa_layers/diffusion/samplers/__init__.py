"""Samplers: how noise becomes a picture, one a file."""
