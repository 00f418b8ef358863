"""Hook implementations of kanawa-kernel-tools; imports only kanawa.plugins and the standard library."""

import argparse
from types import ModuleType

from kanawa.plugins import CommandOptions, hookimpl


@hookimpl
def kanawa_hookspecs() -> ModuleType:
    """Returns the spec of `kanawa_kernel_schedules`, which backends implement."""
    from kanawa_kernel_tools import specs

    return specs


@hookimpl
def kanawa_command_options() -> list[CommandOptions]:
    """Returns the options of `kanawa kernels` that measure kernels, and compile one alone."""
    return [
        CommandOptions(
            verb="kernels",
            configure=_configure,
            run=_run,
            example=(
                "kanawa kernels quickstart --bench\n"
                "kanawa kernels --schedule attention.tpu.splash --on v5p-8 --problem head_dim=64"
            ),
        )
    ]


def _configure(parser: argparse.ArgumentParser) -> None:
    from kanawa_kernel_tools.commands import bench, schedule

    for command in (bench, schedule):
        command.configure(parser)


def _run(args: argparse.Namespace) -> int | None:
    """Runs what the options ask for; None where none of them is used."""
    if args.schedule:
        from kanawa_kernel_tools.commands.schedule import show_schedule

        return show_schedule(args)
    if args.bench:
        from kanawa_kernel_tools.commands.bench import run_bench

        return run_bench(args)
    return None
