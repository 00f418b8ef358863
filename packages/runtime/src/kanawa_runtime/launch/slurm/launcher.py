"""`slurm`: jobs by sbatch, looked after by squeue, scontrol and scancel."""

import math
import re
import time
from collections.abc import Iterator
from pathlib import Path

from kanawa.config import NonNegative

from kanawa_runtime.exit_codes import SIGNAL_BASE
from kanawa_runtime.launch.client import LauncherError, call, end_of
from kanawa_runtime.launch.job import Job, target
from kanawa_runtime.launch.launcher import Launcher, State, Status
from kanawa_runtime.launch.slurm.script import batch_script

_SLURM = "this must be a node of a Slurm cluster, with its client tools"
_FILE = "job.sbatch"
_LOG_BYTES = 16_384
#: How often a job that isn't there is asked for, and how long after the last time.
_TIMES, _AGAIN_SECONDS = 4, 0.5
#: What a line of options can't hold as it stands.
_IN_SBATCH = re.compile(r"[\s\"'#%\\]")
_TIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}")
_STATES: dict[str, State] = {
    "PENDING": "queued",
    "CONFIGURING": "queued",
    "REQUEUED": "restarting",
    "REQUEUE_HOLD": "restarting",
    "RUNNING": "running",
    "SUSPENDED": "queued",
    "COMPLETING": "running",
    "COMPLETED": "done",
    "CANCELLED": "cancelled",
    "PREEMPTED": "restarting",
}


class SlurmLauncher(Launcher):
    """A batch job of Slurm; it is named by its number.

    A gang that lost a process starts again in its allocation; one that was asked to stop (time limit, preemption) goes
    back to the queue with `scontrol requeue`. The run directory must lie where all nodes see it.
    """

    title = "slurm"
    secrets_by = "export it in the shell that submits, whose variables sbatch hands on"

    class Config(Launcher.Config):
        #: Time limit, as sbatch takes it: 1-12:00:00. Empty for the partition's.
        time: str = ""
        account: str = ""
        qos: str = ""
        constraint: str = ""
        exclusive: bool = False
        #: Lines before the command, such as `source /shared/venv/bin/activate`.
        setup: list[str] = []
        #: More options of sbatch, such as `--licenses=a`.
        options: list[str] = []
        #: What the rest of a gang gets to end by itself once a process has ended.
        settle_seconds: NonNegative = 30.0
        #: The pause before a restart in the allocation, and the longest: each is twice the one before.
        backoff_seconds: NonNegative = 1.0
        most_backoff_seconds: NonNegative = 60.0

    def render(self, job: Job) -> dict[str, str]:
        """Returns the batch script."""
        return {_FILE: batch_script(job, self.config)}

    def problems(self, job: Job) -> Iterator[str]:
        """Yields what Slurm can't do."""
        cfg = self.config
        if not job.run or "://" in job.run or not job.run.startswith("/"):
            yield (
                f"run {job.run!r}: logs and exit codes lie beside the run, in a folder that every node sees; give an "
                "absolute path on a shared file system with --run"
            )
        if _IN_SBATCH.search(job.run):
            yield f"run {job.run!r}: sbatch reads blanks, quotes, '#', '%' and backslashes in a log's name as others"
        if cfg.time and not _TIME.fullmatch(cfg.time):
            yield f"time {cfg.time!r} is no time limit of sbatch; expected minutes, HH:MM:SS or DAYS-HH:MM:SS"
        if job.spot:
            yield "spot: what may be preempted is a partition or a QOS; give --queue PARTITION or --option qos=NAME"
        if job.priority and not job.priority.isdigit():
            yield f"priority {job.priority!r}: Slurm takes a number; for a class of service give --option qos=NAME"
        if target(job).device.platform == "tpu":
            yield f"target {job.target}: Slurm doesn't know TPUs; use jobset or pathways on GKE"
        unknown = sorted(set(job.resources) - {"cpu", "memory"})
        if unknown:
            yield f"resources {', '.join(unknown)}: sbatch takes cpu and memory; others with --option 'options=[...]'"
        memory, cpu = job.resources.get("memory", "1"), job.resources.get("cpu", "1")
        if re.fullmatch(r"\d+[KMGT]i", memory):
            yield f"memory {memory}: Slurm writes {memory[:-1]} for it; give --resource memory={memory[:-1]}"
        elif not re.fullmatch(r"\d+[KMGT]?", memory):
            yield f"memory {memory!r}: Slurm takes whole numbers with K, M, G or T; give --resource memory=64G"
        if not re.fullmatch(r"[1-9]\d*", cpu):
            yield f"cpu {cpu!r}: Slurm takes whole ones; give --resource cpu=8"
        words = (("queue", job.queue), ("account", cfg.account), ("qos", cfg.qos), ("constraint", cfg.constraint))
        yield from (
            f"{name} {text!r}: sbatch reads blanks, quotes, '#', '%' and backslashes as others; give another"
            for name, text in words
            if _IN_SBATCH.search(text)
        )
        wrong = [option for option in cfg.options if not option.startswith("--")]
        yield from (f"option {option!r} is none of sbatch; write --name=value" for option in wrong)

    def submit(self, job: Job, folder: Path) -> str:
        """Submits the script; a job of this name that still waits or runs is returned as it is."""
        known = call(["squeue", "--me", "--noheader", f"--name={job.name}", "--format=%A"], _SLURM).split()
        if known:
            return known[0]
        Path(job.run, "launch").mkdir(parents=True, exist_ok=True)
        return call(["sbatch", "--parsable", str(folder / _FILE)], _SLURM).strip().partition(";")[0]

    def status(self, name: str) -> Status:
        """Returns what the controller says; after it has forgotten the job, what its accounting says."""
        facts = self._facts(name)
        state = facts["JobState"].split()[0].rstrip("+")
        code, _, number = facts.get("ExitCode", "0:0").partition(":")
        ended = int(code) or (SIGNAL_BASE + int(number) if int(number or 0) else 0)
        word = _STATES.get(state, "failed")
        exit_code = ended if word in ("done", "failed") else None
        reason = facts.get("Reason", "None")
        # What was lost, the script counts; the queue those that it got back.
        lost = int(_beside(facts, f"restarts-{name}") or 0)
        return Status(word, lost, exit_code, "" if reason == "None" else reason, int(facts.get("Restarts", 0)))

    def logs(self, name: str) -> str:
        """Returns the end of the job's log."""
        path = Path(self._facts(name).get("StdOut", ""))
        return end_of(path, _LOG_BYTES) if path.is_file() else ""

    def cancel(self, name: str) -> None:
        """Asks the gang to save, for as long as its grace; then cancels the job and waits until all of it has ended."""
        facts = self._facts(name)
        grace = int(_beside(facts, f"grace-{name}") or 0)
        if grace and facts["JobState"].startswith("RUNNING"):
            Path(facts["StdOut"]).with_name(f"cancelled-{name}").touch()
            call(["scancel", "--signal=TERM", name], _SLURM)
            self._gone(name, grace)
        call(["scancel", name], _SLURM)
        self._gone(name, math.inf)

    def _gone(self, name: str, seconds: float) -> None:
        """Returns once a job has left the queue, or so long after."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if not call(["squeue", "--noheader", f"--jobs={name}", "--format=%T"], _SLURM).strip():
                    return
            except LauncherError as error:
                if "Invalid job id" in str(error):
                    return
                raise
            time.sleep(min(1.0, self.config.poll_seconds))

    def _facts(self, name: str) -> dict[str, str]:
        """Returns what Slurm knows of a job by its own names; raises LauncherError."""
        if not re.fullmatch(r"\d+", name):
            message = f"{name!r} is no job of Slurm: they are numbers; `squeue --me` lists yours"
            raise LauncherError(message)
        for left in reversed(range(_TIMES)):
            try:
                text = call(["scontrol", "--oneliner", "show", "job", name], _SLURM)
                break
            except LauncherError as error:
                if "Invalid job id" not in str(error):
                    raise
            if not left:
                return self._accounted(name)
            # A job that is being requeued was once not there for a moment.
            time.sleep(_AGAIN_SECONDS)
        return dict(re.findall(r"(?:^|\s)([A-Za-z/]+)=(\S*)", text))

    def _accounted(self, name: str) -> dict[str, str]:
        try:
            asked = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=State,ExitCode", f"--jobs={name}"]
            said = call(asked, _SLURM).strip().splitlines()
        except LauncherError:
            said = []
        if not said:
            message = (
                f"Slurm has no job {name} any more, and no accounting that remembers it; see the log beside the run"
            )
            raise LauncherError(message)
        state, _, code = said[-1].partition("|")
        return {"JobState": state, "ExitCode": code}


def _beside(facts: dict[str, str], file: str) -> str:
    """Returns what the script wrote to a file beside the job's log, nothing where there is none."""
    path = Path(facts.get("StdOut", "")).with_name(file) if facts.get("StdOut") else None
    return path.read_text().strip() if path is not None and path.is_file() else ""
