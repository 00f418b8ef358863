"""NVIDIA GPUs for Kanawa: figures, mesh rules, compiler options, kernels."""

from kanawa_backends_gpu._version import __version__ as __version__
