"""Compiler options for Trainium: none, and why."""

from typing import Any


def compiler_options() -> dict[str, Any]:
    """Returns no options: neuronx-cc reads the variable NEURON_CC_FLAGS, not XLA's compiler
    options.

    `environment.compiler_flags` makes its value.
    """
    return {}
