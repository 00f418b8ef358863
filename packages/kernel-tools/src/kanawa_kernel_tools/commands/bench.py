"""`kanawa kernels EXPERIMENT --bench`: measures the installed kernels here, and writes the fastest for later runs."""

from __future__ import annotations

import argparse
import datetime
from typing import TYPE_CHECKING, Any

from kanawa.cli.arguments import compose_from
from kanawa.cli.output import write, write_json
from kanawa.errors import KernelError, TargetError, UsageError
from kanawa.local_path import local_path

if TYPE_CHECKING:
    from pathlib import Path

    from kanawa.composition.experiment import Composition
    from kanawa.kernels.choice import KernelChoice

    from kanawa_kernel_tools.measuring.bench import Measurement

_MIB = 2**20
#: Operands, their copies on the host, results, cotangents and gradients.
_COPIES = 6


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds --bench and --table."""
    parser.add_argument(
        "--bench",
        action="store_true",
        help="measure every installed kernel on this machine's devices and write the fastest into the tuning table",
    )
    parser.add_argument("--table", metavar="FILE", help="tuning table that --bench writes (default: this user's own)")


def run_bench(args: argparse.Namespace) -> int:
    """Measures the problems of a program; returns 1 where one of them couldn't be measured at all."""
    import jax
    from kanawa.api.kernels import chosen_kernels
    from kanawa.composition.target import local_target
    from kanawa.kernels.tuning_table import default_path, read_table

    from kanawa_kernel_tools.measuring.bench import add_entries

    if not args.experiment:
        message = "--bench measures the kernels of a program: name an EXPERIMENT"
        raise UsageError(message)
    table = local_path(args.table, "--table") if args.table else default_path()
    composition = compose_from(args, on=args.on or local_target() or "cpu")
    _check_here(composition)
    # A file that isn't a table is an error now, not after minutes of measuring.
    read_table(table)
    seen, entries, failed = [], [], 0
    for choice in chosen_kernels(composition, args.program):
        measurements, failure = _measured(choice)
        entry = _entry(choice, measurements)
        failed += entry is None
        if entry is not None:
            entries.append(entry)
        seen.append(_as_json(choice, measurements, failure))
        if not args.json:
            _listed(choice, measurements, failure, None if entry is None else (entry.kernel, entry.tuning))
    if entries:
        add_entries(table, entries)
    if args.json:
        write_json({"device": jax.devices()[0].device_kind, "table": str(table), "measured": seen})
    else:
        _concluded(table, len(entries))
    return 1 if failed else 0


def _check_here(composition: Composition) -> None:
    """Raises TargetError where the composition's target isn't what this process runs on."""
    from kanawa.kernels.platform import current_platform

    target, (platform, kind) = composition.target, current_platform()
    if target is not None and target.device.platform != platform:
        message = (
            f"--bench measures on this machine's devices, which are {kind} ({platform}), and --on asks for "
            f"{target.selector}; run it there, or leave out --bench to see what would be chosen"
        )
        raise TargetError(message)


def _measured(choice: KernelChoice) -> tuple[list[Measurement], str]:
    """Returns what was measured of a call's problem, or why nothing was."""
    from kanawa_kernel_tools.measuring.bench import measure

    if choice.local_problem is None:
        return [], "it is a way to split a sequence, and no kernel"
    room = _memory_bytes()
    if choice.operand_bytes * _COPIES > room:
        asked = f"its operands take {choice.operand_bytes / _MIB:,.0f} MiB and with gradients some {_COPIES} times that"
        return [], f"{asked}, of {room / _MIB:,.0f} MiB here; measure a smaller batch, with --set batch_size=..."
    try:
        return measure(choice), ""
    except KernelError as error:
        return [], str(error)


def _memory_bytes() -> int:
    """Returns the memory of a device of this process."""
    import jax
    from kanawa.plugins.devices import machine_memory_bytes

    device = jax.devices()[0]
    reported = (device.memory_stats() or {}).get("bytes_limit")
    return machine_memory_bytes() if reported is None else int(reported)


def _entry(choice: KernelChoice, measurements: list[Measurement]) -> Any:
    """Returns what the table keeps; None where nothing ran."""
    import jax
    from kanawa.kernels.tuning_table import Entry, device_key

    from kanawa_kernel_tools.measuring.bench import fastest

    best = fastest(measurements)
    if best is None:
        return None
    return Entry(
        device=device_key(jax.devices()[0].device_kind),
        operation=choice.operation,
        problem=choice.problem,
        kernel=best.kernel,
        tuning=best.tuning,
        versions=_versions({one.kernel for one in measurements}),
        measured=tuple(one.as_json() for one in measurements),
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    )


def _versions(kernels: set[str]) -> dict[str, str]:
    """Returns the versions that decide how quick kernels are: JAX's, and those of the packages that offer them."""
    from importlib.metadata import version

    from kanawa.plugins import host

    offering = {state.distribution for state in host().components("kernels") if state.name in kernels}
    return {name: version(name) for name in sorted({"jax", "jaxlib", *offering})}


def _as_json(choice: KernelChoice, measurements: list[Measurement], failure: str) -> dict[str, Any]:
    return {
        "operation": choice.operation,
        "problem": choice.problem,
        "measured": [one.as_json() for one in measurements],
        **({"failure": failure} if failure else {}),
    }


def _listed(choice: KernelChoice, measurements: list[Measurement], failure: str, best: tuple[str, Any] | None) -> None:
    write(f"{choice.operation} {choice.problem}")
    if failure:
        write(f"    not measured: {failure}")
    for one in measurements:
        name = " ".join([one.kernel, *(f"{name}={value}" for name, value in one.tuning)])
        if one.failure or one.seconds is None:
            write(f"    failed        {name}: {one.failure}")
            continue
        mark = "  <- used from now on" if (one.kernel, one.tuning) == best else ""
        write(f"    {one.seconds * 1e3:9.3f} ms  {name}, temporary {one.temporary_bytes / _MIB:.0f} MiB{mark}")


def _concluded(table: Path, count: int) -> None:
    if not count:
        write("nothing was measured, and no table is written")
        return
    write(
        f"wrote {count} problem{'' if count == 1 else 's'} to {table}; runs on such a device use it from now on "
        "(--set execution.tuning=none: not)"
    )
