"""AWS Trainium for Kanawa: figures, mesh rules, environment, kernels in NKI."""

from kanawa_backends_neuron._version import __version__ as __version__
