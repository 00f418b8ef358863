"""A process joins the others of its run, and ends well when one of them is lost."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable

from kanawa.errors import INTERRUPTIONS

from kanawa_runtime.exit_codes import PEER_LOST, SIGNAL_BASE
from kanawa_runtime.train.peers import PeerLostError, lost_peer


def join_gang(coordinator: str | None, processes: int | None, process_id: int | None) -> None:
    """Joins the other processes of the run; does nothing for a run of one. Raises PeerLostError if they don't come."""
    from kanawa.errors import UsageError

    given = (coordinator, processes, process_id)
    if all(value is None for value in given):
        return
    if any(value is None for value in given):
        message = "--coordinator, --processes and --process-id go together; give all three or none"
        raise UsageError(message)
    import jax

    from kanawa_runtime.commands.abort_watch import watch_for_aborts

    # A failed check of XLA's own aborts as well, and nothing tells one from the other but what was printed.
    reason = "JAX was about to abort this one, as it does then; where its last lines above say otherwise, believe them"
    watch_for_aborts(lambda: leave_gang(reason))
    try:
        _wait_for(lambda: jax.distributed.initialize(coordinator, processes, process_id))
        _compare_plugins()
    except INTERRUPTIONS as stop:
        # The thread that still waits for the others would hold the process up.
        atexit.register(
            _leave_now, SIGNAL_BASE + (signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM)
        )
        raise
    except RuntimeError as error:
        said = lost_peer(error)
        # Of its runtime's errors most pass, such as a port that is still taken; of its Python's, such as a second
        # `initialize`, none does, and a restarting supervisor would loop for ever.
        if said is None and not isinstance(error, jax.errors.JaxRuntimeError):
            raise
        raise PeerLostError(said or str(error)) from error


def _wait_for(join: Callable[[], None]) -> None:
    """Calls `join` on another thread: XLA waits minutes for peers, and Python answers no signal inside of it."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            join()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="kanawa-join", daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def prepare_gang(on: str | None, coordinator: str | None, processes: int | None, process_id: int | None) -> None:
    """Sets what the target's runtime reads in each process of a gang; what the environment has already stays.

    Before JAX starts its backend. Without `--on` nothing is known of the devices, and nothing is set.
    """
    if on is None or coordinator is None or processes is None or process_id is None:
        return
    from kanawa.composition.target import parse_target
    from kanawa.plugins import host

    root = coordinator.rpartition(":")[0].strip("[]")
    asked = {"device": parse_target(on).device, "root": root, "processes": processes, "index": process_id}
    for _, variables in host().collect("kanawa_process_environment", **asked):
        for name, value in (variables or {}).items():
            os.environ.setdefault(name, value)


def leave_gang(reason: str) -> None:
    """Ends this process with the code that means "start me again", and one line.

    At once: on its usual way out Python would let JAX wait for the others, minutes, and abort when they don't come.
    """
    from kanawa.cli.output import write_message

    if os.environ.get("KANAWA_JOB"):
        then = "this one ends, and what launched them judges by the one that failed first"
    else:
        then = "start all of them again with the same command, and the run resumes from its newest checkpoint"
    try:
        write_message(f"kanawa: {PEER_LOST} ({reason}): {then}")
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # Whether or not somebody still reads what it says.
        os._exit(PeerLostError.exit_code)


def leave_after_error(error: BaseException) -> None:
    """Makes this process of a gang end with the error's own code once it is printed, without waiting for the others.

    JAX's way out is a barrier with all processes. Those that train on never come to it: five minutes later it aborts,
    and what is permanent would look like a lost peer, which is worth another start.
    """
    from kanawa.errors import KanawaError

    code = error.exit_code if isinstance(error, KanawaError) else 1
    # The last to register is the first to be called: before JAX's own.
    atexit.register(_leave_now, code)


def _leave_now(code: int) -> None:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _compare_plugins() -> None:
    """Raises PluginError where the processes have different plugins: they would compile different programs and hang."""
    import numpy as np
    from jax.experimental import multihost_utils
    from kanawa.errors import PluginError
    from kanawa.plugins import host

    digest = np.frombuffer(bytes.fromhex(host().plugin_set_digest()), np.uint8)
    everyone = np.asarray(multihost_utils.process_allgather(digest))
    different = [i for i, other in enumerate(everyone) if not np.array_equal(other, digest)]
    if different:
        mine = ", ".join(f"{name} {version}" for name, version in sorted(host().plugin_set().items()))
        message = (
            f"processes {different} of the run have other plugins than this one, which has {mine}; "
            f"compare `kanawa plugins` on their hosts and install the same versions"
        )
        raise PluginError(message)
