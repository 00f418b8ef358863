"""`kanawa train`: train an experiment, or resume a run."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from kanawa.cli.arguments import experiment_arguments
from kanawa.cli.early_signals import Terminated, early_signals
from kanawa.plugins import Command

from kanawa_runtime.commands.run_arguments import run_arguments
from kanawa_runtime.exit_codes import LOST, table_text

if TYPE_CHECKING:
    from kanawa_runtime.train.loop import Loop
    from kanawa_runtime.train.outcome import Outcome
    from kanawa_runtime.train.screen import Screen

_INTERRUPTED, _TERMINATED = 130, 143
_NOT_AGAIN = ("--from-step", "--coordinator", "--processes", "--process-id")


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="train",
        help="train an experiment, or resume its run",
        configure=configure,
        run=run,
        example=(
            "kanawa train quickstart --run runs/first\n"
            "kanawa train quickstart --modify moe:num_experts=4 --set seed=1 --steps 100 --run runs/moe\n"
            "kanawa train llama-tiny --data 'mytext/**/*.txt' --run runs/mine\n"
            "kanawa train runs/mine --set steps=2000\n"
            "kanawa train runs/mine --from-step 1000\n"
            "kanawa train runs/mine --branch-from runs/mine@1000 --set learner.schedule.peak=1e-4 --run runs/lower\n"
            "kanawa train downloads/Llama-3.2-1B --data 'mytext/**/*.txt' --run runs/tuned\n"
            "kanawa train quickstart --modify service:name=tensorboard --run runs/watched\n"
            "kanawa train quickstart --modify service:name=status-page --profile steps=20:25 --run runs/profiled\n"
            f"{table_text()}; 130 and 143: stopped before anything was saved"
        ),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    experiment_arguments(parser)
    default = "default: runs/NAME, from a folder runs/NAME-tuned, for a run alone its own"
    parser.add_argument(
        "--run", dest="directory", metavar="DIR", help=f"folder, or s3://bucket/run (default: {default})"
    )
    run_arguments(parser)
    parser.add_argument(
        "--from-step",
        type=int,
        metavar="N",
        help="resume from this checkpoint of the run, not the newest; later ones are set aside, not deleted",
    )
    parser.add_argument(
        "--profile",
        metavar="steps=A:B",
        help="record these steps in RUN/profile, for TensorBoard and ui.perfetto.dev",
    )
    parser.add_argument("--json", action="store_true", help="write one object at the end: outcome, step, losses, paths")
    gang = parser.add_argument_group("several processes (all take the same arguments)")
    gang.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0")
    gang.add_argument("--processes", type=int, metavar="N", help="number of processes")
    gang.add_argument("--process-id", type=int, metavar="I", help="index of this process")


def run(args: argparse.Namespace) -> int:
    """Trains; returns the exit code."""
    from kanawa.cli.output import write_json
    from kanawa.status import hidden

    from kanawa_runtime.process import leave_readers_behind

    with hidden():
        screen = _screen(args)
        try:
            outcome = _train(args, screen)
        except (KeyboardInterrupt, Terminated) as stop:
            # Once the loop runs, signals are its own; here nothing was trained.
            screen.close()
            terminated = isinstance(stop, Terminated)
            name = "SIGTERM" if terminated else "Ctrl-C"
            screen.say(f"stopped by {name} before the run was opened; nothing was changed")
            return _TERMINATED if terminated else _INTERRUPTED
        except Exception as error:
            _start_again_if_it_passes(error)
            _leave_if_peer_lost(args, screen, error)
            raise
        finally:
            screen.close()
    if args.json and _is_primary(args):
        write_json({"experiment": args.experiment, **outcome.as_json()})
    if outcome.kind != "done" and args.coordinator is None:
        leave_readers_behind(outcome.exit_code)
    return outcome.exit_code


def _train(args: argparse.Namespace, screen: Screen) -> Outcome:
    # Once the loop runs, signals are its own.
    with early_signals(gives_sigterm_back=args.coordinator is None) as check:
        loop = _loop(args, screen, check)
    return loop.execute()


def _start_again_if_it_passes(error: Exception) -> None:
    """Marks errors that a restart may cure as worth one, in a job and at a terminal.

    Its run is held: the last attempt may be cut off, and will end by itself soon. Or a storage fails, the data's too.
    """
    from kanawa.contracts import LeaseHeldError, StorageError, StorageRefusedError

    from kanawa_runtime.checkpoint.errors import CheckpointUnreadableError, is_storage_failure
    from kanawa_runtime.train.batches import DataReadError

    if isinstance(error, StorageRefusedError):
        return
    if isinstance(error, LeaseHeldError | StorageError | CheckpointUnreadableError):
        error.exit_code = LOST
    elif isinstance(error, DataReadError) and is_storage_failure(error.__cause__ or error):
        # Files that are gone are no failure of a storage, and don't come back.
        error.exit_code = LOST
    else:
        return
    error.add_note("this may pass, and nothing is lost: the same command resumes the run from its newest checkpoint")


def _leave_if_peer_lost(args: argparse.Namespace, screen: Screen, error: Exception) -> None:
    """Ends the process of a gang where another one was lost; after another error it ends without waiting for them."""
    if args.coordinator is None:
        return
    from kanawa_runtime.commands.gang import leave_after_error, leave_gang
    from kanawa_runtime.train.peers import lost_peer

    reason = lost_peer(error)
    if reason is not None:
        screen.close()
        leave_gang(reason)
    leave_after_error(error)


def _loop(args: argparse.Namespace, screen: Screen, check: Callable[[], None]) -> Loop:
    """Returns the loop, its run open; `check` raises once more for a signal that came since the start."""
    with screen.phase("importing JAX"):
        import jax  # noqa: F401 - seconds on a busy machine, so that it has a phase of its own
    from kanawa.api.experiment import experiment
    from kanawa.composition.target import local_target

    from kanawa_runtime.api.train import training_loop
    from kanawa_runtime.commands.gang import join_gang, prepare_gang
    from kanawa_runtime.process import prepare_process
    from kanawa_runtime.storage.place import check_place

    check()
    prepare_process()
    with screen.phase("waiting for the other processes"):
        prepare_gang(args.on, args.coordinator, args.processes, args.process_id)
        join_gang(args.coordinator, args.processes, args.process_id)
    if args.require_fused:
        args.set.append("execution.require_fused=true")
    if args.profile is not None:
        from kanawa_runtime.services.profiler import profile_modifier

        profiler = f"service:name=profiler,values={json.dumps(profile_modifier(args.profile))}"
        args.modify = [*args.modify, profiler]
    for what, place in (("--run", args.directory), ("--init-from", args.init_from)):
        check_place(place or "", what)
    with screen.phase("composing"):
        asked = experiment(
            args.experiment, on=args.on or local_target(), modify=args.modify, set=args.set, data=args.data
        )
    check()
    return training_loop(
        asked,
        run=args.directory,
        steps=args.steps,
        init_from=args.init_from,
        from_step=args.from_step,
        leave_out=args.leave_out,
        branch_from=args.branch_from,
        eval_data=args.eval_data or (),
        screen=screen,
        owns_process=True,
        command=_typed(),
    )


def _screen(args: argparse.Namespace) -> Screen:
    """Returns the screen: silent in all processes but the first, drawn on a terminal, plain lines elsewhere."""
    from kanawa_runtime.train.screen import Screen

    if not _is_primary(args):
        return Screen()
    from kanawa_runtime.train.terminal import screen_here

    return screen_here()


def _is_primary(args: argparse.Namespace) -> bool:
    return not args.process_id


def _typed() -> str:
    """Returns the command as it was typed, which resumes the run; empty where none was (a call from Python)."""
    launched = os.environ.get("KANAWA_RESUME")
    words = sys.argv[1:]
    return launched or (shlex.join(["kanawa", *_to_type_again(words)]) if words[:1] == ["train"] else "")


def _to_type_again(words: list[str]) -> list[str]:
    """Returns the words without --from-step, which would go back once more, and without those of an ended gang."""
    kept: list[str] = []
    skip = False
    for word in words:
        name, equals, _ = word.partition("=")
        is_option = len(name) > len("--") and any(option.startswith(name) for option in _NOT_AGAIN)
        if not skip and not is_option:
            kept.append(word)
        skip = is_option and not equals
    return kept
