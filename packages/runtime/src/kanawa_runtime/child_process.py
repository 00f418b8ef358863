"""Processes of our own modules that answer one message at a time and may be killed: work apart from this process.

Such a module calls `answer_messages` where it is run as one.
"""

import contextlib
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO

_LENGTH = struct.Struct("!Q")
#: Nothing else of the environment is passed on: keys are there.
_PASSED = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TZ", "HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "SYSTEMROOT")
_PIPE_BYTES = 2**20


class ChildProcesses:
    """As many processes of a module as threads ask at once; they are started as they are needed, and used again.

    Each is sent `start` first, once.
    """

    def __init__(self, module: str, start: Callable[[], bytes] | None = None) -> None:
        self._module, self._start = module, start
        self._idle: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def ask(self, content: bytes, *, seconds: float, most_bytes: int) -> bytes:
        """Returns the answer of a process; raises OSError or EOFError, the process ended, where there is none in time.

        Of an answer of more than `most_bytes` the rest is left out.
        """
        with self._lock:
            process = self._idle.pop() if self._idle else None
        process = process or self._started()
        try:
            answer = _asked(process, content, seconds, most_bytes)
        except (OSError, EOFError):
            process.kill()
            process.communicate()
            raise
        with self._lock:
            self._idle.append(process)
        return answer

    def close(self) -> None:
        """Ends the processes that have nothing to do."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.kill()
            process.communicate()

    def __del__(self) -> None:
        """Ends them with their owner."""
        self.close()

    def _started(self) -> subprocess.Popen[bytes]:
        environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
        # Not multiprocessing: it would run the main module again, which a notebook or a script needn't survive.
        command, pipe = [sys.executable, "-P", "-m", self._module], subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, pipesize=_PIPE_BYTES)
        if self._start is not None:
            _send(process, self._start())
        return process


def _send(process: subprocess.Popen[bytes], content: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(_LENGTH.pack(len(content)))
    process.stdin.write(content)
    process.stdin.flush()


def _asked(process: subprocess.Popen[bytes], content: bytes, seconds: float, most_bytes: int) -> bytes:
    """Returns a process's answer; raises EOFError where it ends, TimeoutError where it takes too long."""
    assert process.stdout is not None
    _send(process, content)
    answer, wanted, until = bytearray(), _LENGTH.size, time.monotonic() + seconds
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    while len(answer) < wanted:
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            raise TimeoutError
        piece = os.read(process.stdout.fileno(), _PIPE_BYTES)
        if not piece:
            raise EOFError
        answer += piece
        if wanted == _LENGTH.size and len(answer) >= wanted:
            wanted += min(_LENGTH.unpack_from(answer)[0], most_bytes)
    return bytes(answer[_LENGTH.size :])


def answer_messages(answer: Callable[[bytes], bytes], most_memory_bytes: int) -> None:
    """Answers what comes on the standard input until it ends, within so much memory."""
    # What libraries print must not come between answers.
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system has such limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (most_memory_bytes, most_memory_bytes))
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        while (content := next_message(asked)) is not None:
            made = answer(content)
            answers.write(_LENGTH.pack(len(made)))
            answers.write(made)
            answers.flush()


def next_message(asked: IO[bytes]) -> bytes | None:
    """Returns the next message, None where the input has ended."""
    head = asked.read(_LENGTH.size)
    return asked.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else None
