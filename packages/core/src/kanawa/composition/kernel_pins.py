"""Kernels that a config pins by name: looked up before anything is traced, so that an error can list near names."""

from collections.abc import Mapping

from kanawa.errors import did_you_mean
from kanawa.plugins import host


def pin_problems(pins: Mapping[str, str]) -> list[str]:
    """Returns what is wrong with pins {operation: kernel's name}; whether a kernel applies is found in tracing."""
    states = host().components("kernels")
    operations = {state.name.partition(".")[0] for state in states}
    problems = []
    for operation, pin in pins.items():
        names = [state.name for state in states if state.name.startswith(f"{operation}.")]
        bare = pin.rpartition(":")[2]  # a name claimed twice is written distribution:name
        if operation not in operations:
            near = did_you_mean(operation, operations)
            problems.append(f"execution.kernels: no installed kernel computes an operation {operation!r}{near}")
        elif bare not in names:
            near = did_you_mean(bare, names)
            problems.append(f"execution.kernels: no installed kernel of {operation} is called {pin!r}{near}")
    return problems
