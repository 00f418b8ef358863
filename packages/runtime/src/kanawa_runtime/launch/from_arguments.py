"""From the command line to a job: what `kanawa launch` was asked for, as the record that launchers render."""

import argparse
import re
from pathlib import Path
from typing import Any

from kanawa.composition.target import parse_target
from kanawa.errors import UsageError

from kanawa_runtime.launch.grace import measured_grace
from kanawa_runtime.launch.job import NAME, Job

#: A server answers what it has for 30 s (server.drain_seconds) once routers have left it.
SERVER_GRACE_SECONDS = 60
#: What only training takes, as options and as names in the arguments.
_OF_TRAINING = (
    *("run", "data", "steps", "init-from", "branch-from", "leave-out", "eval-data", "modify", "require-fused"),
    *("processes", "hosts"),
)


def job_from(args: argparse.Namespace, *, serves: bool = False, is_here: bool = False) -> Job:
    """Returns the job, one that trains or one that `serves`; raises UsageError for what no launcher could run.

    Only a job that runs on this machine, `is_here`, finds out what hardware it has: elsewhere --on must say.
    """
    if args.on is None and not is_here:
        message = (
            f"--on says what hardware the job runs on, such as cpu-8, h100-64 or v5p-512; {args.launcher} gives it "
            "what is asked for, and no accelerator unasked"
        )
        raise UsageError(message)
    if serves:
        return _serving(args)
    if args.replicas is not None:
        message = "--replicas is of servers: the launchers `deployment` and `ray-serve` run them"
        raise UsageError(message)
    run = args.directory or f"runs/{Path(args.experiment.rstrip('/')).name}"
    target = parse_target(args.on or "cpu")
    processes = 1 if args.processes is None else args.processes
    hosts = target.hosts // target.slices if args.hosts is None else args.hosts
    if args.hosts is not None and target.device.platform != "cpu":
        message = f"--hosts {args.hosts}: target {args.on} has {target.hosts} hosts; leave --hosts out"
        raise UsageError(message)
    return Job(
        name=args.name or _name(run),
        command=_command(args, run),
        target=args.on or "",
        slices=target.slices,
        hosts_per_slice=hosts,
        processes_per_host=processes,
        grace_seconds=measured_grace(run, asks=not args.dry_run) if args.grace is None else args.grace,
        run=run,
        **_treatment(args),
    )


def _serving(args: argparse.Namespace) -> Job:
    """Returns the job of a server's replicas."""
    names = {"run": "directory"}
    given = [option for option in _OF_TRAINING if getattr(args, names.get(option, option.replace("-", "_")))]
    if given:
        message = f"--{', --'.join(given)}: of training; a server takes RUN, --on, and --set engine.… or server.…"
        raise UsageError(message)
    target = parse_target(args.on or "cpu")
    words = ["kanawa", "serve", args.experiment, *(["--on", args.on] if args.on else [])]
    words += [word for text in args.set for word in ("--set", text)]
    return Job(
        name=args.name or _name(args.experiment),
        command=words,
        target=args.on or "cpu",
        is_gang=False,
        slices=target.slices,
        hosts_per_slice=target.hosts // target.slices,
        grace_seconds=SERVER_GRACE_SECONDS if args.grace is None else args.grace,
        run=args.experiment,
        **_treatment(args),
        replicas=1 if args.replicas is None else args.replicas,
    )


def _treatment(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the fields of a job that are asked for alike, whether it trains or serves."""
    return {
        "image": args.image or "",
        "environment": _pairs(args.env, "--env"),
        "resources": _pairs(args.resource, "--resource"),
        "spot": args.spot,
        "queue": args.queue or "",
        "priority": args.priority or "",
        "retries": args.retries,
        "spares": args.spares,
    }


def _command(args: argparse.Namespace, run: str) -> list[str]:
    """Returns the command of each process, without what its launcher adds."""
    words = ["kanawa", "train", args.experiment, "--run", run]
    for option in ("on", "data", "steps", "init_from", "branch_from", "leave_out", "eval_data"):
        value = getattr(args, option)
        for one in value if isinstance(value, list) else () if value is None else (value,):
            words += [f"--{option.replace('_', '-')}", str(one)]
    words += [word for text in args.modify for word in ("--modify", text)]
    words += [word for text in args.set for word in ("--set", text)]
    return [*words, "--require-fused"] if args.require_fused else words


def _name(run: str) -> str:
    """Returns a DNS label from the run's folder: submitting a run again names the same job again."""
    slug = re.sub(r"[^a-z0-9]+", "-", run.rstrip("/").rpartition("/")[2].lower()).strip("-")[:40].strip("-")
    return slug if NAME.fullmatch(slug) else f"run-{slug}".rstrip("-")


def _pairs(texts: list[str], option: str) -> dict[str, str]:
    """Returns NAME=VALUE arguments by name; raises UsageError for one without '=', or given twice."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            message = f"{option} {text!r}: expected NAME=VALUE"
            raise UsageError(message)
        if name in pairs:
            message = f"{option} {name} is given twice, as {pairs[name]!r} and {value!r}; give it once"
            raise UsageError(message)
        pairs[name] = value
    return pairs
