"""Assembles the verbs, runs one, and turns errors into messages and exit codes."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence

from kanawa.cli.early_signals import Terminated, early_signals
from kanawa.cli.output import flush, forget_stdout, usable_streams, write_message
from kanawa.cli.parser import TRACEBACK_VARIABLE, build_parser
from kanawa.cli.verbs import core_verbs, plugin_verbs, unknown_verb, with_plugin_options
from kanawa.errors import INTERRUPTIONS, CompositionError, KanawaError, PluginError, UsageError
from kanawa.status import stage, status_line

LOG_VARIABLE = "KANAWA_LOG"
INTERRUPTED, TERMINATED = 130, 143


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `kanawa` with these arguments (those of the process if None).

    Returns the exit code: 0 done; 2 usage; 42, or 127 and above, worth a retry; the rest permanent.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    usable_streams()
    show_traceback = "--traceback" in arguments or os.environ.get(TRACEBACK_VARIABLE) == "1"
    with status_line():
        return _run_reported([a for a in arguments if a != "--traceback"], show_traceback)


def _run_reported(arguments: list[str], show_traceback: bool) -> int:
    """Runs a verb and writes its errors; returns the exit code."""
    _log_to_stderr()
    try:
        with stage("starting"):
            code = _run(arguments)
        flush()
        return code
    except INTERRUPTIONS as stop:
        terminated = isinstance(stop, Terminated)
        write_message("kanawa: stopped by SIGTERM" if terminated else "kanawa: interrupted")
        return TERMINATED if terminated else INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        forget_stdout()
        return 0
    except BaseException as error:  # SystemExit too: some library that gave up would end the program in silence
        culprit = _plugin_behind(error)
        expected = isinstance(error, (KanawaError, OSError, MemoryError))
        if show_traceback or not (expected or culprit):
            write_message(traceback.format_exc())
        if expected or culprit:
            text = _text(error) if expected else f"{type(error).__name__}: {error}"
            write_message("\n".join([f"kanawa: error: {text}", *_notes(error), *culprit]))
            return _ended(error)
        write_message(f"kanawa: this is a bug: {type(error).__name__} should not get here")
        return 1


def _run(arguments: list[str]) -> int:
    verb = next((a for a in arguments if not a.startswith("-")), None)
    commands = core_verbs()
    if "--version" not in arguments:
        with early_signals() as check:
            if verb not in commands:
                commands |= plugin_verbs(commands, verb)
            commands = with_plugin_options(commands)
            check()
    if verb is not None and verb not in commands and "--version" not in arguments:
        raise UsageError(unknown_verb(verb, commands))
    parser = build_parser(commands, verb)
    try:
        args = parser.parse_args(arguments)
    except SystemExit as stop:  # argparse has already written its message
        return int(stop.code or 0)
    except (KeyError, TypeError, ValueError) as error:  # argparse formats help texts when they are shown
        message = f"the help of verb {verb!r} can't be shown: {error}; in a help text % is written %%"
        raise PluginError(message) from error
    if args.run_verb is None:
        parser.print_help()
        return 2
    with stage(f"kanawa {verb}"):
        return int(args.run_verb(args) or 0)


def _ended(error: BaseException) -> int:
    """Returns an error's exit code, once what was written before it has left or can't leave."""
    try:
        flush()
    except OSError:
        forget_stdout()
    return error.exit_code if isinstance(error, KanawaError) else 1


def _text(error: BaseException) -> str:
    """Returns an error's message; several problems are counted and set apart, since each may have lines of its own."""
    if isinstance(error, MemoryError):
        return f"there isn't enough memory: {error or 'Python asked for more'}; ask for less, or use a larger machine"
    if isinstance(error, OSError):
        # Neither the command nor the code is wrong: a disk is full, a folder is read-only, a file has gone.
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}; --traceback shows what was being done"
    problems = error.problems if isinstance(error, CompositionError) else ()
    if len(problems) < 2:
        return str(error)
    apart = ["- " + problem.replace("\n", "\n  ") for problem in problems]
    return "\n".join([f"{len(problems)} problems:", *apart])


def _plugin_behind(error: BaseException) -> list[str]:
    """Returns a line with the plugin or the user's file that an error came through; none without such code."""
    from kanawa.plugins.fault import foreign_code_behind, how_to_skip, plugin_behind

    try:
        state = plugin_behind(error)
    except PluginError:  # the host was still being asked
        return []
    if state is not None:
        return [f"  {how_to_skip(state)}"]
    # Of OSErrors neither command nor code is to blame, whoever wrote to the disk.
    place = None if isinstance(error, (KanawaError, OSError, MemoryError)) else foreign_code_behind(error)
    return [] if place is None else [f"  raised in {place}; --traceback shows what called it"]


def _notes(error: BaseException) -> list[str]:
    """Returns an error's notes without those by which JAX and Grain explain a traceback that we don't print."""
    notes: list[str] = getattr(error, "__notes__", [])
    return [f"  {note}" for note in notes if "has removed its internal frames" not in note]


def _log_to_stderr() -> None:
    """Installs the process's one log handler, unless the embedding program has one."""
    if not logging.getLogger().handlers:
        level = os.environ.get(LOG_VARIABLE, "WARNING").upper()
        logging.basicConfig(
            level=level if level in logging.getLevelNamesMapping() else "WARNING",
            format="%(levelname)s %(name)s: %(message)s",
        )
