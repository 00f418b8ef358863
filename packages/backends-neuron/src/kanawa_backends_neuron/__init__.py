"""AWS Trainium for Kanawa: figures, mesh rules, environment."""

from kanawa_backends_neuron._version import __version__ as __version__
