"""`slurm`: jobs by sbatch, looked after by squeue, scontrol and scancel."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

from kanawa.config import NonNegative

from kanawa_runtime.exit_codes import SIGNAL_BASE
from kanawa_runtime.launch.client import call
from kanawa_runtime.launch.errors import EngineError
from kanawa_runtime.launch.job import Job, target
from kanawa_runtime.launch.launcher import Launcher, State, Status
from kanawa_runtime.launch.slurm.script import batch_script

_SLURM = "this must be a node of a Slurm cluster, with its client tools"
_FILE = "job.sbatch"
_LOG_BYTES = 16_384
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

    @property
    def engine(self) -> str:
        """Returns what to call it."""
        return "slurm"

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
        if re.fullmatch(r"\d+(\.\d+)?[KMGT]i", job.resources.get("memory", "")):
            yield f"memory {job.resources['memory']}: Slurm writes {job.resources['memory'][:-1]} for it"
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
        told = _STATES.get(state, "failed")
        exit_code = ended if told in ("done", "failed") else None
        reason = facts.get("Reason", "None")
        return Status(told, int(facts.get("Restarts", 0)), exit_code, "" if reason == "None" else reason)

    def logs(self, name: str) -> str:
        """Returns the end of the job's log."""
        path = Path(self._facts(name).get("StdOut", ""))
        return path.read_bytes()[-_LOG_BYTES:].decode(errors="replace") if path.is_file() else ""

    def cancel(self, name: str) -> None:
        """Cancels the job and waits until Slurm has ended all of it."""
        self._facts(name)
        call(["scancel", name], _SLURM)
        while call(["squeue", "--noheader", f"--jobs={name}", "--format=%T"], _SLURM).strip():
            time.sleep(min(1.0, self.config.poll_seconds))

    def _facts(self, name: str) -> dict[str, str]:
        """Returns what Slurm knows of a job by its own names; raises EngineError."""
        if not re.fullmatch(r"\d+", name):
            message = f"{name!r} is no job of Slurm: they are numbers; `squeue --me` lists yours"
            raise EngineError(message)
        try:
            text = call(["scontrol", "--oneliner", "show", "job", name], _SLURM)
        except EngineError as error:
            if "Invalid job id" not in str(error):
                raise
            return self._accounted(name)
        return dict(re.findall(r"(?:^|\s)([A-Za-z/]+)=(\S*)", text))

    def _accounted(self, name: str) -> dict[str, str]:
        try:
            asked = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=State,ExitCode", f"--jobs={name}"]
            said = call(asked, _SLURM).strip().splitlines()
        except EngineError:
            said = []
        if not said:
            message = (
                f"Slurm has no job {name} any more, and no accounting that remembers it; see the log beside the run"
            )
            raise EngineError(message)
        state, _, code = said[-1].partition("|")
        return {"JobState": state, "ExitCode": code}
