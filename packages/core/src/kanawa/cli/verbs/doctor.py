"""`kanawa doctor`: is this machine ready, are all hosts alike, and is it using the hardware it has?"""

from __future__ import annotations

import argparse
from pathlib import Path

from kanawa.cli import preflight
from kanawa.cli.arguments import json_argument
from kanawa.cli.output import write, write_json
from kanawa.errors import UsageError
from kanawa.local_path import local_path
from kanawa.plugins import Command, Finding, host


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="doctor",
        help="check Python, JAX, plugins, drivers, flags, file system, network; exit 1 if anything is wrong",
        configure=_configure,
        run=_run,
        example="kanawa doctor\nkanawa doctor --run /shared/runs/a --hosts 4 --coordinator 10.0.0.1:8476",
    )


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", metavar="DIR", help="try the file system of this folder (default: the current one)")
    parser.add_argument(
        "--devices", action="store_true", help="start JAX once, in a process of its own, and say on what"
    )
    parser.add_argument("--coordinator", default="", metavar="HOST:PORT", help="is it there, or free on its own host?")
    parser.add_argument("--hosts", type=int, metavar="N", help="compare N hosts that run this at once and share --run")
    parser.add_argument("--wait", type=float, default=60.0, metavar="SECONDS", help="for the other hosts (default: 60)")
    json_argument(parser)


def _run(args: argparse.Namespace) -> int:
    findings = [*preflight.findings(), *_of_this_machine(args)]
    for _, contributed in host().collect("kanawa_doctor"):
        findings += contributed
    findings += preflight.plugin_findings()  # last, because asking may have broken one
    if args.json:
        keys = ("level", "subject", "message", "fix", "meaning")
        write_json([{key: getattr(finding, key) for key in keys} for finding in findings])
    else:
        width = max(len(finding.subject) for finding in findings)
        for finding in findings:
            write(f"{finding.level:7}  {finding.subject:{width}}  {finding.message}")
            if finding.meaning:
                write(f"{'':7}  {'':{width}}  {finding.meaning}")
            if finding.fix:
                write(f"{'':7}  {'':{width}}  -> {finding.fix}")
    return 1 if any(finding.level == "error" for finding in findings) else 0


def _of_this_machine(args: argparse.Namespace) -> list[Finding]:
    """Returns what can only be known by trying: the folder of runs, the network, the process, the other hosts."""
    from kanawa.cli.checks import file_system, hosts, network, process

    folder = local_path(args.run, "--run") if args.run else Path.cwd()
    if args.hosts is not None and (args.hosts < 1 or not args.run):
        message = f"--hosts {args.hosts}: expected 1 or more, and a --run folder that all of them see"
        raise UsageError(message)
    told = [*file_system.findings(folder), *network.findings(args.coordinator), *process.findings()]
    if args.devices:
        told.append(process.check_devices())
    if args.hosts is not None:
        try:
            told += hosts.findings(folder, args.hosts, args.wait)
        except OSError as error:
            told.append(Finding("error", "hosts", f"{folder} can't be written to: {error}", "give another --run"))
    return told
