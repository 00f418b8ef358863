"""Training, data, checkpoints, evaluation, generation and reports for Sashimono."""

from sashimono_runtime._version import __version__ as __version__
