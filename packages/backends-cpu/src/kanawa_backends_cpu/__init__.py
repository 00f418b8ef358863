"""CPUs for Kanawa: the processor's description, mesh rules, process settings, kernels."""

from kanawa_backends_cpu._version import __version__ as __version__
