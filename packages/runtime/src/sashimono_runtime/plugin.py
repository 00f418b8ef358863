"""Hook implementations of sashimono-runtime; imports only sashimono.plugins and the standard library."""

from sashimono.plugins import Command, hookimpl


@hookimpl
def sashimono_commands() -> list[Command]:
    """Returns the verbs that train, evaluate, generate and report."""
    from sashimono_runtime.commands import evaluate, generate, report, train

    return [train.command(), evaluate.command(), generate.command(), report.command()]
