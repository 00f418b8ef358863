"""A real Slurm on this machine: munged, slurmctld and a slurmd for each node, in a folder of their own."""

import contextlib
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

from ports import free_port

_DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch")
_SECONDS = 120


def missing() -> str:
    """Returns why no cluster can be started here; empty where one can."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    gone = [name for name in _DAEMONS if shutil.which(name, path=path) is None]
    if gone:
        return f"{', '.join(gone)} not installed: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "slurmd starts tasks as their users, which needs root"


@contextlib.contextmanager
def cluster(nodes: int = 1) -> Iterator[dict[str, str]]:
    """Starts a cluster and yields the variables with which Slurm's tools find it; nothing of it is left after.

    One node has this machine's name; several have names that nothing resolves, so that their tasks can't form a gang.
    """
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kanawa-slurm-"))
    folder.chmod(0o755)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    environment["PATH"] = os.pathsep.join([environment.get("PATH", ""), "/usr/sbin", "/sbin"])
    try:
        _start(folder, environment, nodes)
        yield environment
    finally:
        # Tasks outlive the daemon of their node.
        _cancel_all(environment)
        for pid_file in (*folder.glob("slurmd*.pid"), folder / "slurmctld.pid", folder / "munged.pid"):
            _stop(pid_file)
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: pathlib.Path, environment: dict[str, str], nodes: int) -> None:
    for name in ("munge", "spool", "state"):
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge" / "key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    (folder / "slurm.conf").write_text(_configuration(folder, nodes))
    munge = [
        f"--{what}={folder}/munge/{what.partition('-')[0]}" for what in ("key-file", "socket", "log-file", "seed-file")
    ]
    commands = (
        ["munged", "--force", *munge, f"--pid-file={folder}/munged.pid"],
        ["slurmctld", "-c", "-f", str(folder / "slurm.conf")],
        *(["slurmd", "-N", name, "-f", str(folder / "slurm.conf")] for name in _names(nodes)),
    )
    for command in commands:
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=_SECONDS)
    deadline = time.monotonic() + _SECONDS
    ask = ["sinfo", "--noheader", "--format=%T"]
    said = b""
    while set(said.split()) != {b"idle"}:
        assert time.monotonic() < deadline, (said, (folder / "slurmctld.log").read_text()[-2000:])
        time.sleep(0.2)
        said = subprocess.run(ask, env=environment, capture_output=True, check=False).stdout


def _names(nodes: int) -> list[str]:
    here = socket.gethostname().partition(".")[0]
    return [here] if nodes == 1 else [f"node{number}" for number in range(1, nodes + 1)]


def _configuration(folder: pathlib.Path, nodes: int) -> str:
    name = socket.gethostname().partition(".")[0]
    ports = [free_port() for _ in range(1 + nodes)]
    settings = {
        "ClusterName": "test",
        "SlurmctldHost": f"{name}(127.0.0.1)",
        "SlurmctldPort": ports[0],
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge/socket",
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "spool" / "%n",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmdPidFile": folder / "slurmd-%n.pid",
        "SlurmctldLogFile": folder / "slurmctld.log",
        "SlurmdLogFile": folder / "slurmd-%n.log",
        # Neither cgroups nor accounting: a container has none.
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU",
        "JobAcctGatherType": "jobacct_gather/none",
        "MpiDefault": "none",
        "SlurmdParameters": "config_overrides",
        "SchedulerParameters": "batch_sched_delay=0,sched_min_interval=0,bf_interval=1,sched_interval=1",
        "KillWait": 2,
        # A busy machine's daemons answer late.
        "MessageTimeout": 60,
        "ReturnToService": 2,
        "PartitionName": "main Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
    }
    hosts = [
        f"NodeName={node} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs=4 State=UNKNOWN\n"
        for node, port in zip(_names(nodes), ports[1:], strict=True)
    ]
    partition = settings.pop("PartitionName")
    return (
        "".join(f"{key}={value}\n" for key, value in settings.items()) + "".join(hosts) + f"PartitionName={partition}\n"
    )


def _cancel_all(environment: dict[str, str]) -> None:
    deadline = time.monotonic() + _SECONDS
    ask = ["squeue", "--noheader", "--format=%A"]
    while jobs := subprocess.run(ask, env=environment, capture_output=True, text=True, check=False).stdout.split():
        subprocess.run(["scancel", "--full", *jobs], env=environment, check=False)
        if time.monotonic() > deadline:
            return
        time.sleep(0.2)


def _stop(pid_file: pathlib.Path) -> None:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
        pid = int(pid_file.read_text())
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
