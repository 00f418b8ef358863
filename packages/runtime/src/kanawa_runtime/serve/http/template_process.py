"""Chat templates in processes of their own, which may be killed: a template is a stranger's program.

Run as a module it is such a process: it renders what comes on its input until that ends.
"""

import contextlib
import datetime
import json
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, Any

#: The longest text of a template; the request itself is limited before.
MAX_CHARACTERS = 64 * 2**20
_MAX_MEMORY_BYTES = 2**30
_MAX_ANSWER_BYTES = 12 * MAX_CHARACTERS
_LENGTH = struct.Struct("!Q")
#: Nothing else of the environment is passed on: keys are there.
_PASSED = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TZ", "HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "SYSTEMROOT")


class TemplateError(Exception):
    """A template can't be read, or doesn't take what it got; or it took too long or too much memory."""


class TemplateProcesses:
    """Renders in as many processes as threads ask at once; they are started as they are needed, and used again."""

    def __init__(self) -> None:
        self._idle: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def render(self, source: str, variables: Mapping[str, Any] | None, *, seconds: float) -> str:
        """Returns a template's text; "" without variables, where it is only read. Raises TemplateError."""
        with self._lock:
            process = self._idle.pop() if self._idle else None
        process = process or _started()
        try:
            content = _asked(process, json.dumps({"source": source, "variables": variables}).encode(), seconds)
        except (OSError, EOFError) as error:
            process.kill()
            process.communicate()
            limit = f"{seconds:g} s or {_MAX_MEMORY_BYTES // 2**20:,} MiB of memory"
            message = f"it took more than {limit}, and was ended"
            raise TemplateError(message) from error
        with self._lock:
            self._idle.append(process)
        answer = json.loads(content)
        if "error" in answer:
            raise TemplateError(answer["error"])
        return str(answer["text"])

    def close(self) -> None:
        """Ends the processes that render nothing."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.kill()
            process.communicate()

    def __del__(self) -> None:
        """Ends them with their owner."""
        self.close()


def _started() -> subprocess.Popen[bytes]:
    environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
    command = [sys.executable, "-P", "-m", __name__]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _asked(process: subprocess.Popen[bytes], content: bytes, seconds: float) -> bytes:
    """Returns a process's answer; raises EOFError where it ends, TimeoutError where it takes too long."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(_LENGTH.pack(len(content)) + content)
    process.stdin.flush()
    answer, wanted, until = bytearray(), _LENGTH.size, time.monotonic() + seconds
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    while len(answer) < wanted:
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            raise TimeoutError
        piece = os.read(process.stdout.fileno(), 2**20)
        if not piece:
            raise EOFError
        answer += piece
        if wanted == _LENGTH.size and len(answer) >= wanted:
            wanted += min(_LENGTH.unpack_from(answer)[0], _MAX_ANSWER_BYTES)
    return bytes(answer[_LENGTH.size :])


class _RefusedError(Exception):
    """A template called raise_exception."""


def _environment() -> Any:
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}`: what is inside is the model's own words, which only training on them has to know."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            # What is set inside is unknown after it, as where the mark is written by transformers.
            return nodes.Scope(body, lineno=line)

    def to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
        del options
        return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)

    def refuse(message: object) -> None:
        raise _RefusedError(str(message))

    extensions = [loopcontrols, Generation]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda pattern: datetime.datetime.now().strftime(pattern)
    return environment


def _rendered(environment: Any, source: str, variables: Mapping[str, Any] | None) -> dict[str, str]:
    try:
        template = environment.from_string(source)
        pieces, length = [], 0
        for piece in template.generate(**variables) if variables is not None else ():
            pieces.append(piece)
            length += len(piece)
            if length > MAX_CHARACTERS:
                return {"error": f"it makes more than {MAX_CHARACTERS:,} characters"}
        return {"text": "".join(pieces)}
    except _RefusedError as error:
        return {"error": str(error)[:500]}
    except Exception as error:  # An unknown program ran on unknown messages: anything may be raised.
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def main(asked: IO[bytes], answers: IO[bytes]) -> None:
    """Renders templates until the input ends."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system has such limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    environment = _environment()
    while len(head := asked.read(_LENGTH.size)) == _LENGTH.size:
        content = json.loads(asked.read(_LENGTH.unpack(head)[0]))
        answer = json.dumps(_rendered(environment, content["source"], content["variables"])).encode()
        answers.write(_LENGTH.pack(len(answer)) + answer)
        answers.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
