"""Shell completion: a script for each shell, made of the parser; names of the catalog are asked for at the key press.

What an argument takes is read from its metavar, so that verbs of plugins complete like ours.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import NamedTuple

from kanawa.plugins import host
from kanawa.plugins.devices import device_specs

#: Metavar to what `kanawa completion --names` lists.
_NAMED = {
    "EXPERIMENT": "experiments",
    "OTHER": "experiments",
    "TARGET": "targets",
    "TARGET[,TARGET...]": "targets",
    "NAME[:key=value,...]": "modifiers",
    "KIND": "kinds",
}
_BASH = """\
# Completion of kanawa for bash; in ~/.bashrc:  eval "$(kanawa completion bash)"
_kanawa_names() {{ kanawa completion --names "$1" 2>/dev/null; }}
_kanawa() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" verb="${{COMP_WORDS[1]}}" words=""
  if [ "$COMP_CWORD" -le 1 ]; then
    words="{verbs}"
  else
    case "$verb:$before" in
{values}
      *)
        case "$verb:$current" in
{options}
{positionals}
        esac ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _kanawa kanawa
"""
_ZSH = """\
# Completion of kanawa for zsh; in ~/.zshrc:  eval "$(kanawa completion zsh)"
autoload -U +X compinit && compinit
autoload -U +X bashcompinit && bashcompinit
"""


class Takes(NamedTuple):
    """What an argument takes: one of `words`, a name of kind `names`, or else anything, such as a file."""

    words: tuple[str, ...] = ()
    names: str = ""


class VerbWords(NamedTuple):
    """What can be written after a verb: options with what they take (None for flags), and its positional arguments."""

    help: str
    options: dict[str, Takes | None]
    positionals: list[Takes]


def words_of(parsers: Mapping[str, argparse.ArgumentParser]) -> dict[str, VerbWords]:
    """Returns, for each verb, what its parser knows."""
    return {name: _words(parser) for name, parser in parsers.items()}


def script(shell: str, verbs: Mapping[str, VerbWords]) -> str:
    """Returns the script for "bash", "zsh" or "fish"."""
    if shell == "fish":
        return _fish(verbs)
    return _bash(verbs) if shell == "bash" else _ZSH + _bash(verbs).partition("\n")[2]


def names(kind: str) -> list[str]:
    """Returns names to complete: of targets, of kinds, of what an EXPERIMENT may be, or of a kind of component."""
    if kind == "targets":
        return [selector for spec in device_specs().values() for selector in _selectors(spec)]
    if kind == "kinds":
        return sorted(host().kinds())
    kinds = ("experiments", "models") if kind == "experiments" else (kind,)
    return sorted({state.name for k in kinds for state in host().components(k) if state.state.usable})


def _selectors(spec: object) -> list[str]:
    """Returns a device's name with every count it is sold in, or with a few where any count is."""
    name, topologies = getattr(spec, "name", ""), getattr(spec, "topologies", {})
    counts = list(topologies) or [1, getattr(spec, "chips_per_host", 1)]
    return [f"{name}-{count * getattr(spec, 'cores_per_unit', 1)}" for count in dict.fromkeys(counts)]


def _words(parser: argparse.ArgumentParser) -> VerbWords:
    options: dict[str, Takes | None] = {}
    positionals = []
    for action in parser._actions:
        takes = Takes(tuple(map(str, action.choices or ())), _NAMED.get(str(action.metavar), ""))
        if action.option_strings:
            options |= dict.fromkeys(action.option_strings, None if action.nargs == 0 else takes)
        else:
            positionals.append(takes)
    return VerbWords(parser.description or "", options, positionals)


def _listed(takes: Takes) -> str:
    return f"$(_kanawa_names {takes.names})" if takes.names else " ".join(takes.words)


def _bash(verbs: Mapping[str, VerbWords]) -> str:
    values, options, positionals = [], [], []
    for verb, words in verbs.items():
        values += [
            f'      {verb}:{option}) words="{_listed(takes)}" ;;'
            for option, takes in words.options.items()
            if takes is not None
        ]
        options.append(f'          {verb}:-*) words="{" ".join(words.options)}" ;;')
        some = " ".join(filter(None, map(_listed, words.positionals)))
        positionals.append(f'          {verb}:*) words="{some}" ;;')
    return _BASH.format(
        verbs=" ".join([*verbs, "--help", "--version"]),
        values="\n".join(values),
        options="\n".join(options),
        positionals="\n".join(positionals),
    )


def _fish(verbs: Mapping[str, VerbWords]) -> str:
    lines = [
        "# Completion of kanawa for fish; once:",
        "#   kanawa completion fish > ~/.config/fish/completions/kanawa.fish",
    ]
    for verb, words in verbs.items():
        here = f"-n '__fish_seen_subcommand_from {verb}'"
        lines.append(f"complete -c kanawa -n __fish_use_subcommand -f -a {verb} -d {_quoted(words.help)}")
        for option, takes in words.options.items():
            flag = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            argument = "" if takes is None else f" -r{_fish_list(takes)}"
            lines.append(f"complete -c kanawa {here} {flag}{argument}")
        lines += [f"complete -c kanawa {here}{_fish_list(takes)}" for takes in words.positionals if any(takes)]
    return "\n".join(lines) + "\n"


def _fish_list(takes: Takes) -> str:
    if takes.names:
        return f" -a '(kanawa completion --names {takes.names} 2>/dev/null)'"
    return f" -f -a {_quoted(' '.join(takes.words))}" if takes.words else ""


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
