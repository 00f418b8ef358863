"""What `kanawa doctor` tries on this machine before a run, and the options that say where."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kanawa.errors import UsageError
from kanawa.local_path import local_path
from kanawa.plugins import Finding

from kanawa_runtime.preflight import file_system, hosts, process


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds --run, --devices, --coordinator, --hosts and --wait."""
    parser.add_argument("--run", metavar="DIR", help="try the file system of this folder (default: the current one)")
    parser.add_argument("--devices", action="store_true", help="start JAX once, in its own process; show its devices")
    parser.add_argument("--coordinator", default="", metavar="HOST:PORT", help="is it there, or free on its own host?")
    parser.add_argument("--hosts", type=int, metavar="N", help="compare N hosts that run this at once and share --run")
    parser.add_argument("--wait", type=float, default=60.0, metavar="SECONDS", help="for the other hosts (default: 60)")


def findings(options: Mapping[str, Any]) -> list[Finding]:
    """Returns what only trying shows: the folder of runs, the network, the process, the other hosts."""
    run, count = options.get("run"), options.get("hosts")
    try:
        folder = local_path(run, "--run") if run else Path.cwd()
    except FileNotFoundError:
        return [Finding("warning", "folder", "the current folder is gone", "change to one that exists, or give --run")]
    if count is not None and (count < 1 or not run):
        message = f"--hosts {count}: expected 1 or more, and a --run folder that all of them see"
        raise UsageError(message)
    found = [*file_system.findings(folder), *process.findings(options.get("coordinator", ""))]
    if options.get("devices"):
        found.append(process.check_devices())
    if count is not None:
        try:
            found += hosts.findings(folder, count, options["wait"])
        except OSError as error:
            found.append(Finding("error", "hosts", f"{folder} can't be written to: {error}", "use another --run"))
    return found
