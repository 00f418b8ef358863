"""Layers, models and recipes for Kanawa."""

from kanawa_layers._version import __version__ as __version__
