"""Real `kanawa` processes that start in a moment, for drills that end hundreds of them. Imports no JAX.

with Nursery(environment) as nursery:
    child = nursery.start(["train", "tiny-lm", "--run", run], said=path)
    child.kill()
    assert child.wait() == -9
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from xla_options import xla_flags

FOLDER = pathlib.Path(__file__).parent
#: This machine may be busy, and a drill that hangs shall still end.
ROOMY_SECONDS = 600


class Child:
    """A forked process; the part of `subprocess.Popen` that drills use. `said` is the file of both its streams."""

    def __init__(self, said: pathlib.Path) -> None:
        self.said = said
        self.pid = 0
        self.returncode: int | None = None
        self.born, self.ended = threading.Event(), threading.Event()

    def poll(self) -> int | None:
        """Returns the exit code, negative for a signal; None while it runs."""
        return self.returncode

    def wait(self, timeout: float = ROOMY_SECONDS) -> int:
        """Returns the exit code; raises TimeoutError."""
        if not self.ended.wait(timeout):
            message = f"process {self.pid} runs for {timeout} s, and said: {self.text()[-2000:]}"
            raise TimeoutError(message)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.returncode is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def kill(self) -> None:
        """Ends it without a word."""
        self.send_signal(signal.SIGKILL)

    def text(self) -> str:
        """Returns what it wrote."""
        return self.said.read_text(errors="replace") if self.said.exists() else ""


class Nursery:
    """One process that has imported everything and forks the rest."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        clean = {k: v for k, v in os.environ.items() if k != "KANAWA_FAULT"}
        path = os.pathsep.join(filter(None, [str(FOLDER), clean.get("PYTHONPATH", "")]))
        self._environment = {
            **clean,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": xla_flags(),
            "PYTHONPATH": path,
            **(environment or {}),
        }
        self._children: dict[str, Child] = {}
        self._by_pid: dict[int, Child] = {}
        self._lock = threading.Lock()
        self._count = 0

    def __enter__(self) -> "Nursery":
        self._process = subprocess.Popen(
            [sys.executable, str(FOLDER / "nursery_process.py")],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._ready = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        if not self._ready.wait(ROOMY_SECONDS) or self._process.poll() is not None:
            message = "the process that forks the others did not start"
            raise RuntimeError(message)
        return self

    def __exit__(self, *error: object) -> None:
        for child in list(self._by_pid.values()):
            child.kill()
        self._process.stdin.close()
        self._process.wait(ROOMY_SECONDS)
        self._listener.join()
        self._process.stdout.close()

    def start(self, argv: Sequence[str], said: pathlib.Path, environment: Mapping[str, str] | None = None) -> Child:
        """Starts `kanawa *argv` and returns once it has a process."""
        child = Child(said)
        with self._lock:
            self._count += 1
            name = str(self._count)
            self._children[name] = child
            order = {"name": name, "argv": list(argv), "environment": dict(environment or {}), "said": str(said)}
            self._process.stdin.write((json.dumps(order) + "\n").encode())
            self._process.stdin.flush()
        assert child.born.wait(ROOMY_SECONDS), "no process was forked"
        return child

    def _listen(self) -> None:
        for line in self._process.stdout:
            record = json.loads(line)
            if "name" in record:
                child = self._children[record["name"]]
                child.pid = record["pid"]
                self._by_pid[child.pid] = child
                child.born.set()
            elif "status" in record:
                child = self._by_pid.pop(record["pid"])
                child.returncode = os.waitstatus_to_exitcode(record["status"])
                child.ended.set()
            else:
                self._ready.set()
        self._ready.set()


def wait_until(condition: object, *children: Child, seconds: float = ROOMY_SECONDS) -> None:
    """Returns once the condition holds or one of the processes has ended; raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not condition() and all(child.poll() is None for child in children):
        if time.monotonic() > deadline:
            message = "no progress:\n" + "\n".join(child.text()[-1000:] for child in children)
            raise TimeoutError(message)
        time.sleep(0.01)
