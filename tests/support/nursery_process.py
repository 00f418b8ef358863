"""Started by `nursery.py`: imports what a run imports, once, and forks a process for each command it is sent.

Without it every process of a gang spends three seconds on imports, and a hundred kills of a gang of four an hour.
A line of JSON on standard input starts a process: {"name", "argv", "environment", "said"}; lines on standard output
say {"name", "pid"} and {"pid", "status"}. JAX's threads start with its backend, which is after the fork.
"""

import json
import os
import select
import signal
import sys
import traceback


def imported() -> None:
    """Imports what `kanawa train` does, and makes no backend."""
    import grain  # noqa: F401
    import jax  # noqa: F401
    import kanawa.cli.main  # noqa: F401
    import kanawa_runtime.train.loop  # noqa: F401
    import optax  # noqa: F401
    import quick_process  # noqa: F401
    import tiny_lm  # noqa: F401
    from jax.experimental import multihost_utils  # noqa: F401
    from orbax import checkpoint  # noqa: F401


def born(order: dict) -> None:
    """Runs a command in the forked process; never returns."""
    code = 70
    try:
        os.setsid()
        said = os.open(order["said"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, said), (2, said)):
            os.dup2(source, target)
        os.environ.update(order["environment"])
        # Where the order names a path of its own, modules are looked for there first.
        sys.path[:0] = [entry for entry in order["environment"].get("PYTHONPATH", "").split(os.pathsep) if entry]
        sys.argv = ["kanawa", *order["argv"]]
        from kanawa.cli.main import main

        code = main(order["argv"])
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:  # noqa: BLE001 - nothing may return into the loop of the parent
        traceback.print_exc()
    finish(code or 0)


def finish(code: int) -> None:
    """Ends the process as the interpreter would: a save under way is waited for, and a gang says goodbye."""
    import atexit
    import threading

    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def reap() -> None:
    """Says which children ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        say({"pid": pid, "status": status})


def say(record: dict) -> None:
    """Writes a line for whoever started this."""
    os.write(1, (json.dumps(record) + "\n").encode())


def main() -> None:
    """Serves until standard input is closed."""
    # A shell that runs tests in the background ignores SIGINT, and every process forked here would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    imported()
    say({"ready": True})
    rest = b""
    while True:
        readable, _, _ = select.select([0], [], [], 0.02)
        reap()
        if not readable:
            continue
        data = os.read(0, 1 << 16)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                born(order)
            say({"name": order["name"], "pid": pid})


if __name__ == "__main__":
    main()
