"""How a process of a gang ends: by a code that another start may mend it, whoever reads its last words."""

import contextlib
import signal
import socket
import subprocess
import sys
import time

import jax
import pytest
from jax.errors import JaxRuntimeError
from kanawa_runtime.commands import abort_watch
from kanawa_runtime.commands.gang import join_gang
from kanawa_runtime.exit_codes import LOST
from kanawa_runtime.launch.local.rank import free_port
from kanawa_runtime.train.peers import PeerLostError

UNHEARD = """
import sys
from kanawa_runtime.commands.gang import leave_gang

class Gone:
    def write(self, text):
        raise ValueError("I/O operation on closed file")
    flush = write

sys.stderr = Gone()
leave_gang("it said so")
"""


def failing(monkeypatch, error):
    def initialize(*arguments):
        raise error

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.setattr(abort_watch, "watch_for_aborts", lambda then: None)


def test_a_mistake_is_not_worth_another_start(monkeypatch):
    failing(monkeypatch, RuntimeError("distributed.initialize should only be called once."))
    with pytest.raises(RuntimeError, match="only be called once") as caught:
        join_gang("localhost:1", 2, 0)
    assert not isinstance(caught.value, PeerLostError)


@pytest.mark.parametrize("text", ["DEADLINE_EXCEEDED: nobody came", "UNKNOWN: the port is taken"])
def test_others_that_do_not_come_are(monkeypatch, text):
    failing(monkeypatch, JaxRuntimeError(text))
    with pytest.raises(PeerLostError, match=text):
        join_gang("localhost:1", 2, 0)


def test_the_code_is_left_where_nobody_hears_the_words():
    done = subprocess.run([sys.executable, "-c", UNHEARD], check=False, timeout=300)
    assert done.returncode == LOST


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_process_that_waits_for_its_peers_ends_at_once(number, code, tmp_path):
    port = free_port()
    gang = ["--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--process-id", "0"]
    command = [sys.executable, "-m", "kanawa.cli", "train", "quickstart", "--run", str(tmp_path / "run"), *gang]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while True:  # it waits once its coordinator answers
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None
            time.sleep(0.1)
        time.sleep(1)
        process.send_signal(number)
        began = time.monotonic()
        assert process.wait(60) == code
        assert time.monotonic() - began < 20
