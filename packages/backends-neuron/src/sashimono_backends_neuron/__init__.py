"""AWS Trainium for Sashimono: figures, mesh rules, environment."""

from sashimono_backends_neuron._version import __version__ as __version__
