"""`kanawa serve` as a process, for tests that talk with it."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import httpx2
from xla_options import xla_flags

KANAWA = str(pathlib.Path(sys.executable).with_name("kanawa"))
#: As few programs as there can be: compiling them is what a test would wait for.
SMALL = ["max_length=128", "max_sequences=4", "prefill_tokens=32", "prefill_sizes=[32]", "batch_sizes=[4]"]
SMALL += ["page_widths=[8]"]
SECONDS = 300


def environment(**more):
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags(), **more}


class Serving:
    """A server's process; ready once it said so."""

    def __init__(self, folder, *options, **variables):
        sizes = [word for text in SMALL for word in ("--set", f"engine.{text}")]
        command = [KANAWA, "serve", str(folder), "--port", "0", "--json", *sizes, *options]
        self.process = subprocess.Popen(
            command, env=environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.said = json.loads(line)
        self.http = httpx2.Client(base_url=self.said["url"], timeout=SECONDS)

    def complete(self, **body):
        answer = self.http.post("/v1/completions", json={"temperature": 0, **body})
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"]

    def number(self, name):
        """Returns a metric's value."""
        lines = [line for line in self.http.get("/metrics").text.splitlines() if line.startswith(f"{name}{{")]
        return sum(float(line.split()[-1]) for line in lines)

    def status(self):
        """Returns what the server says of itself; None where it listens no more."""
        try:
            return self.http.get("/health").json()["status"]
        except httpx2.ConnectError:
            return None

    def end(self, number=signal.SIGTERM):
        """Returns the exit code, and what it complained of."""
        self.http.close()
        self.process.send_signal(number)
        return self.process.wait(SECONDS), self.process.communicate()[1]
