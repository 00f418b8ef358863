"""Google TPUs for Sashimono: figures, mesh rules, compiler options, topologies, kernels."""

from sashimono_backends_tpu._version import __version__ as __version__
