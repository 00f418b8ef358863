"""Training, data, checkpoints, evaluation, generation and reports for Kanawa."""

from kanawa_runtime._version import __version__ as __version__
