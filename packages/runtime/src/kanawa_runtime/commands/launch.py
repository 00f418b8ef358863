"""`kanawa launch`: run an experiment as a job of Slurm, Kubernetes, Ray and others."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kanawa.cli.arguments import EXPERIMENT_HELP, composition_arguments, json_argument
from kanawa.errors import UsageError
from kanawa.plugins import Command

from kanawa_runtime.commands.run_arguments import run_arguments
from kanawa_runtime.exit_codes import table_text, verdict

if TYPE_CHECKING:
    from kanawa_runtime.launch import Job, Launcher


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="launch",
        help="run an experiment as a job of a launcher: local, slurm, jobset, ray, ...",
        configure=configure,
        run=run,
        example=(
            "kanawa launch local quickstart --processes 2 --steps 20 --run runs/gang\n"
            "kanawa launch slurm llama2-7b --on h100-64 --run /shared/7b --option time=1-00:00:00 --dry-run\n"
            "kanawa launch jobset llama2-7b --on v5p-512 --image my/image:1 --run gs://b/7b --queue team --dry-run\n"
            "kanawa launch deployment gs://b/7b --on h100-8 --replicas 4 --image my/image:1 --dry-run\n"
            "kanawa launch local --status runs/gang\n"
            "kanawa launch local --cancel runs/gang\n"
            "launchers: `kanawa list launchers`; with --watch the exit code is the job's, else 0 once it is submitted\n"
            f"{table_text()}"
        ),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("launcher", metavar="LAUNCHER", help="who runs it: `kanawa list launchers`")
    parser.add_argument("experiment", metavar="EXPERIMENT", nargs="?", help=EXPERIMENT_HELP)
    composition_arguments(parser)
    parser.add_argument("--run", dest="directory", metavar="DIR", help="run directory (default: runs/NAME)")
    run_arguments(parser)
    _job_arguments(parser.add_argument_group("the job"))
    doing = parser.add_argument_group("what to do")
    doing.add_argument("--dry-run", action="store_true", help="only write the job's files, to --out or stdout")
    doing.add_argument("--out", metavar="DIR", help="folder for the job's files (default: launch/NAME)")
    stay = "stay until the job ends, and return its exit code (default for local)"
    doing.add_argument("--watch", action=argparse.BooleanOptionalAction, default=None, help=stay)
    for verb, what in (
        ("status", "tell where a job stands"),
        ("logs", "write the newest of what a job wrote"),
        ("cancel", "stop a job for good"),
        ("follow", "watch a job that was submitted before"),
    ):
        doing.add_argument(f"--{verb}", metavar="JOB", help=f"{what}; takes no EXPERIMENT")
    json_argument(parser)


def _job_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--name", help="the job's name (default: the run directory's)")
    group.add_argument("--hosts", type=int, metavar="N", help="machines of a CPU target; others say it themselves")
    group.add_argument("--processes", type=int, metavar="N", help="processes on each host (default: 1)")
    group.add_argument("--image", help="container image")
    group.add_argument("--env", metavar="NAME=VALUE", action="append", default=[], help="environment variable; repeat")
    wanted = "what a host needs, such as cpu=8 or memory=64Gi; repeat"
    group.add_argument("--resource", metavar="NAME=VALUE", action="append", default=[], help=wanted)
    group.add_argument("--spot", action="store_true", help="take machines that may be reclaimed")
    group.add_argument("--queue", help="queue, partition or quota to run under")
    group.add_argument("--priority", help="priority class or number")
    measured = "seconds between a request to stop and the end (default: measured from the run's saves, else 120)"
    group.add_argument("--grace", type=int, metavar="SECONDS", help=measured)
    group.add_argument("--retries", type=int, metavar="N", default=10, help="restarts of the gang (default: 10)")
    group.add_argument("--spares", type=int, metavar="N", default=0, help="hosts or slices that wait to replace others")
    group.add_argument("--replicas", type=int, metavar="N", help="of a server: deployment and ray-serve (default: 1)")
    setting = "a setting of the launcher, typed; repeat (`kanawa launch LAUNCHER --options` lists them)"
    group.add_argument("--option", metavar="path=value", action="append", default=[], help=setting)
    group.add_argument("--options", action="store_true", help="list the launcher's settings and end")


def run(args: argparse.Namespace) -> int:
    """Renders, submits, watches or stops a job; returns the exit code."""
    from kanawa.cli.output import write, write_json, write_message
    from kanawa.config import to_text

    launcher = _launcher(args)
    if sys.argv[1:2] == ["launch"]:
        # What a process of the job says to type when it was stopped.
        os.environ["KANAWA_RESUME"] = shlex.join(["kanawa", *sys.argv[1:]])
    if args.options:
        write(to_text(launcher.config))
        return 0
    asked = [verb for verb in ("status", "logs", "cancel", "follow") if getattr(args, verb) is not None]
    if len(asked) + (args.experiment is not None) != 1:
        message = "give one EXPERIMENT to run, or one of --status, --logs, --cancel and --follow with a submitted job"
        raise UsageError(message)
    if asked:
        return _about(launcher, asked[0], getattr(args, asked[0]), args.json)
    from kanawa_runtime.launch.from_arguments import job_from

    job = job_from(args, serves=launcher.serves, is_here=launcher.is_here)
    launcher.check(job)
    files = launcher.render(job)
    if args.dry_run and not launcher.serves:
        _compose_here(args)
    if args.dry_run and args.out is None:
        _show(args, job, files)
        return 0
    folder = Path(args.out or f"launch/{job.name}")
    if args.dry_run:
        _write(folder, files)
        write("\n".join(f"wrote {folder / name}" for name in files))
        return 0
    launcher.check_unused(job)
    # One process alone says itself, at once, what it refuses.
    if not launcher.serves and not (launcher.watched and int(_processes(job)) == 1):
        _check_experiment(args)
    if not launcher.watched:
        _write(folder, files)
    if launcher.watched if args.watch is None else args.watch:
        return launcher.run(job, folder, write_message)
    name = launcher.submit(job, folder)
    if args.json:
        write_json({"launcher": args.launcher, "engine": args.launcher, "job": name, "files": str(folder)})
    else:
        write(f"submitted {name}")
        write(f"next: kanawa launch {args.launcher} --follow {name}   (or --status, --logs, --cancel)")
    return 0


def _launcher(args: argparse.Namespace) -> Launcher:
    """Returns the launcher with its settings; raises UsageError."""
    from kanawa.config import apply_override
    from kanawa.plugins import component

    from kanawa_runtime.launch import Launcher

    kind = component("launchers", args.launcher)
    if not (isinstance(kind, type) and issubclass(kind, Launcher)):
        message = f"launcher {args.launcher!r} is {kind!r}, expected a subclass of kanawa_runtime.launch.Launcher"
        raise UsageError(message)
    config = kind.Config()
    for text in args.option:
        apply_override(config, text)
    launcher: Launcher = config.build()
    return launcher


def _about(launcher: Launcher, verb: str, name: str, as_json: bool) -> int:
    """Does what was asked of a job that exists; returns the exit code."""
    import dataclasses

    from kanawa.cli.output import write, write_json, write_message

    if verb == "follow":
        return launcher.watch(name, write_message)
    if verb == "logs":
        write(launcher.logs(name))
        return 0
    if verb == "cancel":
        launcher.cancel(name)
    status = launcher.status(name)
    if as_json:
        write_json({"job": name, **dataclasses.asdict(status)})
    else:
        write(f"{name}: {status.line()}")
    return 0


def _show(args: argparse.Namespace, job: Job, files: dict[str, str]) -> None:
    """Writes the files to stdout, each under its name."""
    from kanawa.cli.output import write, write_json
    from kanawa.config import to_json

    if args.json:
        write_json({"launcher": args.launcher, "engine": args.launcher, "job": to_json(job), "files": files})
        return
    for name, text in files.items():
        write(f"# --- {name}")
        write(text)


def _write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def _processes(job: Job) -> str:
    return str(job.slices * job.hosts_per_slice * job.processes_per_host)


def _compose_here(args: argparse.Namespace) -> None:
    """Composes the experiment of a dry run, in this process; raises UsageError where it can't be, or has no data."""
    from kanawa.api.experiment import experiment

    cfg = experiment(args.experiment, on=args.on, modify=args.modify, set=args.set, data=args.data).config
    source = cfg.data.build()
    if not source.is_named:
        source.account()


def _check_experiment(args: argparse.Namespace) -> None:
    """Composes the experiment before machines are asked for; raises UsageError where it can't be, or can't run so.

    In a process of its own: composing imports JAX, which has no business in one that only watches.
    """
    words = [args.experiment, *(("--on", args.on) if args.on else ()), *(("--data", args.data) if args.data else ())]
    words += [word for text in args.modify for word in ("--modify", text)]
    words += [word for text in args.set for word in ("--set", text)]
    command = [sys.executable, "-P", "-m", "kanawa.cli", "show", *words]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    # What may pass is each process's own to wait for.
    if verdict(done.returncode) == "permanent":
        said = done.stderr.strip().removeprefix("kanawa: error: ")
        message = f"nothing was submitted, because the experiment can't be composed: {said}"
        raise UsageError(message)
