"""Tools for authors of kernels: measure kernels, show how they are compiled, and what they support."""

from kanawa_kernel_tools._version import __version__ as __version__
