"""`kanawa doctor`: is this machine ready, and is it using the hardware it has?"""

from __future__ import annotations

import argparse

from kanawa.cli import preflight
from kanawa.cli.arguments import json_argument
from kanawa.cli.output import write, write_json
from kanawa.plugins import Command, host


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="doctor",
        help="check Python, JAX, plugins, drivers, flags and disk; exit 1 if anything is wrong",
        configure=json_argument,
        run=_run,
        example="kanawa doctor",
    )


def _run(args: argparse.Namespace) -> int:
    findings = preflight.findings()
    for _, contributed in host().collect("kanawa_doctor"):
        findings += contributed
    findings += preflight.plugin_findings()  # last, because asking may have broken one
    if args.json:
        keys = ("level", "subject", "message", "fix")
        write_json([{key: getattr(finding, key) for key in keys} for finding in findings])
    else:
        width = max(len(finding.subject) for finding in findings)
        for finding in findings:
            write(f"{finding.level:7}  {finding.subject:{width}}  {finding.message}")
            if finding.fix:
                write(f"{'':7}  {'':{width}}  -> {finding.fix}")
    return 1 if any(finding.level == "error" for finding in findings) else 0
