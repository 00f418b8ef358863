"""Meshes, sharding strategies, remat and gradient accumulation for Sashimono."""

from sashimono_parallel._version import __version__ as __version__
