"""`kanawa completion SHELL`: a script that asks this verb, at each key press, what may be typed.

What an argument takes is read from its metavar, so that verbs of plugins complete like ours.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from kanawa.cli.output import write
from kanawa.errors import UsageError
from kanawa.plugins import Command

_BASH = """\
# Completion of kanawa for {shell}; in ~/.{shell}rc:  eval "$(kanawa completion {shell})"
_kanawa() {{
  local offered="$(kanawa completion --words "${{COMP_WORDS[@]:1:$COMP_CWORD}}" 2>/dev/null)"
  COMPREPLY=($(compgen -W "$offered" -- "${{COMP_WORDS[$COMP_CWORD]}}"))
}}
complete -o default -F _kanawa kanawa
"""
_ZSH = """\
autoload -U +X compinit && compinit
autoload -U +X bashcompinit && bashcompinit
"""
_FISH = """\
# Completion of kanawa for fish:  kanawa completion fish > ~/.config/fish/completions/kanawa.fish
function _kanawa
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -e words[1]
    kanawa completion --words $words "$current" 2>/dev/null
end
complete -c kanawa -a '(_kanawa)'
"""
_SCRIPTS = {"bash": _BASH.format(shell="bash"), "zsh": _ZSH + _BASH.format(shell="zsh"), "fish": _FISH}
#: Metavar to the kind of name that the argument takes.
_NAMED = {
    "EXPERIMENT": "experiments",
    "OTHER": "experiments",
    "TARGET": "targets",
    "TARGET[,TARGET...]": "targets",
    "NAME[:key=value,...]": "modifiers",
    "KIND": "kinds",
}


def _configure(parser: argparse.ArgumentParser) -> None:
    shells = ", ".join(_SCRIPTS)
    parser.add_argument("shell", metavar="SHELL", nargs="?", choices=tuple(_SCRIPTS), help=f"one of {shells}")
    parser.add_argument(
        "--words",
        metavar="WORD",
        nargs=argparse.REMAINDER,
        help="write what may stand in place of the last of these words, a line each; the scripts ask this",
    )


def _run(args: argparse.Namespace) -> int:
    if args.words is not None:
        write("\n".join(candidates(args.words)))
    elif args.shell is None:
        message = f"completion needs a shell: {', '.join(_SCRIPTS)}"
        raise UsageError(message)
    else:
        write(_SCRIPTS[args.shell])
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """Returns what may stand in place of the last of the words typed after `kanawa`."""
    from kanawa.cli.parser import build_parser, verb_parsers
    from kanawa.cli.verbs import core_verbs, plugin_verbs, with_plugin_options

    commands = core_verbs()
    parsers = verb_parsers(build_parser(with_plugin_options(commands | plugin_verbs(commands))))
    if len(words) < 2:
        return [*parsers, "--help", "--version"]
    if words[0] not in parsers:
        return []
    actions = parsers[words[0]]._actions
    options = {option: action for action in actions for option in action.option_strings}
    if words[-1].startswith("-"):
        return list(options)
    before = options.get(words[-2])
    taking = [a for a in actions if not a.option_strings] if before is None or before.nargs == 0 else [before]
    return [name for action in taking for name in _names(action)]


def _names(action: argparse.Action) -> list[str]:
    """Returns what an argument takes: its choices, or names of targets, of kinds, or of components of a kind."""
    from kanawa.composition.naming import KINDS
    from kanawa.plugins import host
    from kanawa.plugins.devices import device_specs

    kind = _NAMED.get(str(action.metavar))
    if action.choices or kind is None:
        return list(map(str, action.choices or ()))
    if kind == "targets":
        sold = ((spec, list(spec.topologies) or [1, spec.chips_per_host]) for spec in device_specs().values())
        return [f"{spec.name}-{chips * spec.cores_per_unit}" for spec, sizes in sold for chips in dict.fromkeys(sizes)]
    if kind == "kinds":
        return sorted(host().kinds())
    kinds = KINDS if kind == "experiments" else (kind,)
    return sorted({state.name for k in kinds for state in host().components(k) if state.state.usable})


COMMAND = Command(
    name="completion",
    help="write a script that completes verbs, options, experiments, modifiers and targets in your shell",
    configure=_configure,
    run=_run,
    example="kanawa completion bash\nkanawa completion zsh\nkanawa completion fish",
)
