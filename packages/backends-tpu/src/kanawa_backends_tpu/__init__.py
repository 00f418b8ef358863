"""Google TPUs for Kanawa: figures, mesh rules, compiler options, topologies, kernels."""

from kanawa_backends_tpu._version import __version__ as __version__
