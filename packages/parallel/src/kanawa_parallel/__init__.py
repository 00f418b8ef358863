"""Meshes, sharding strategies, remat and gradient accumulation for Kanawa."""

from kanawa_parallel._version import __version__ as __version__
