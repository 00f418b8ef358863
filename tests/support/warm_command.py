"""A `kanawa` command that starts in a tenth of a second: one process has imported what commands import, and forks.

with WarmCommand(folder) as warm:
    subprocess.run([warm.command, "show", "quickstart"], ...)

`warm.command` is an executable named `kanawa`; it behaves like the installed one: its streams, folder, variables,
arguments, exit code and signals are those of the caller. Tests of how the command itself starts use the installed one.
"""

import os
import pathlib
import subprocess
import sys
import textwrap

FOLDER = pathlib.Path(__file__).parent
READY_SECONDS = 600

_CLIENT = """
    #!{python} -IS
    import json, os, signal, socket, sys

    connection = socket.socket(socket.AF_UNIX)
    connection.connect({address!r})
    order = dict(argv=sys.argv[1:], folder=os.getcwd(), environment=dict(os.environ))
    socket.send_fds(connection, [b"\\n"], [0, 1, 2])
    connection.sendall(json.dumps(order).encode() + b"\\n")
    answers = connection.makefile()
    pid = int(answers.readline())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda n, frame: os.kill(pid, n))
    status = int(answers.readline())
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))
"""


class WarmCommand:
    """The process that forks commands, and the executable that asks it to."""

    def __init__(self, folder: pathlib.Path, environment: dict[str, str] | None = None) -> None:
        self._folder = folder
        self._environment = {**os.environ, **(environment or {})}

    @property
    def command(self) -> str:
        """The executable's path; its folder may lead PATH."""
        return str(self._folder / "kanawa")

    def __enter__(self) -> "WarmCommand":
        address = str(self._folder / "socket")
        client = pathlib.Path(self.command)
        client.write_text(textwrap.dedent(_CLIENT).lstrip().format(python=sys.executable, address=address))
        client.chmod(0o755)
        self._process = subprocess.Popen(
            [sys.executable, str(FOLDER / "warm_process.py"), address],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._process.stdout.readline() != "ready\n":
            message = "the process that forks commands did not start"
            raise RuntimeError(message)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.stdin.close()
        self._process.wait(READY_SECONDS)
        self._process.stdout.close()
