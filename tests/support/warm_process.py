"""Started by `warm_command.py`: imports what commands import, once, and forks a process for each that asks.

A client sends its three streams and a line of JSON {"argv", "folder", "environment"}; it receives the process id and,
at the end, the wait status. A command whose variables Python or JAX reads while being imported is executed anew.
"""

import importlib
import json
import os
import pathlib
import select
import signal
import site
import socket
import sys
import traceback

from nursery_process import finish, imported

#: Variables that are read before a command's own code runs.
_READ_AT_IMPORT = ("JAX_", "PYTHON", "OMP_", "MALLOC_", "LD_", "KANAWA_FAULT")


def serve(address: str) -> None:
    """Forks commands until standard input is closed."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    # Ended children are reaped by the system.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    imported()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        readable, _, _ = select.select([0, listener], [], [])
        if 0 in readable:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os._exit(attend(connection))
        connection.close()


def attend(connection: socket.socket) -> int:
    """Forks the command, reports how it ended, and ends it when its client is gone."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile() as lines:
        order = json.loads(lines.readline())
    pid = os.fork()
    if pid == 0:
        connection.close()
        run(order, streams)
    for stream in streams:
        os.close(stream)
    connection.sendall(f"{pid}\n".encode())
    ended = os.pidfd_open(pid)
    readable, _, _ = select.select([connection, ended], [], [])
    if ended not in readable:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    try:
        connection.sendall(f"{status}\n".encode())
    except BrokenPipeError:
        return 1
    return 0


def run(order: dict, streams: list[int]) -> None:
    """Runs a command in the forked process; never returns."""
    code = 70
    try:
        os.setpgid(0, 0)
        for target, source in enumerate(streams):
            os.dup2(source, target)
            os.close(source)
        os.chdir(order["folder"])
        wanted = order["environment"]
        if at_import(wanted) != at_import(os.environ):
            installed = str(pathlib.Path(sys.executable).with_name("kanawa"))
            os.execve(installed, [installed, *order["argv"]], wanted)
        adopt(wanted)
        sys.argv = ["kanawa", *order["argv"]]
        from kanawa.cli.main import main

        code = main(order["argv"])
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:  # noqa: BLE001 - nothing may return into the loop of the parent
        traceback.print_exc()
    finish(code or 0)


def at_import(environment: dict[str, str]) -> dict[str, str]:
    """Returns the variables that decide how modules are imported, without the path."""
    return {k: v for k, v in environment.items() if k.startswith(_READ_AT_IMPORT) and k != "PYTHONPATH"}


def adopt(environment: dict[str, str]) -> None:
    """Takes a client's variables and its path."""
    own = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    wanted = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [*wanted, *(entry for entry in sys.path[1:] if entry not in own)]
    for entry in wanted:
        # An editable installation is a line in a file of the folder.
        site.addsitedir(entry)
    importlib.invalidate_caches()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=stream.isatty())


if __name__ == "__main__":
    serve(sys.argv[1])
