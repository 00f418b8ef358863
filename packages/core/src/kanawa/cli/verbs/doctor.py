"""`kanawa doctor`: what core and every plugin find out about this machine before a run."""

from __future__ import annotations

import argparse

from kanawa.cli import preflight
from kanawa.cli.arguments import json_argument
from kanawa.cli.output import write, write_json
from kanawa.plugins import Command, host


def _run(args: argparse.Namespace) -> int:
    findings = preflight.findings()
    for _, contributed in host().collect("kanawa_doctor", options=vars(args)):
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


COMMAND = Command(
    name="doctor",
    help="check Python, JAX, flags, plugins, and what plugins know of this machine; exit 1 if anything is wrong",
    configure=json_argument,
    run=_run,
    example="kanawa doctor",
)
