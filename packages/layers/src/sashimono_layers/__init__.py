"""Layers, models and recipes for Sashimono."""

from sashimono_layers._version import __version__ as __version__
