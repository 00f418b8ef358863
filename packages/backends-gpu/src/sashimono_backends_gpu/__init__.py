"""NVIDIA GPUs for Sashimono: figures, mesh rules, compiler options, kernels."""

from sashimono_backends_gpu._version import __version__ as __version__
