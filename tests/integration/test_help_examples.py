"""Every example in a verb's help is a command that works: it parses, and what it composes is there."""

import argparse
import pathlib
import shlex

import kanawa as kn
import pytest
from kanawa.cli.parser import build_parser, verb_parsers
from kanawa.cli.verbs import core_verbs, plugin_verbs
from kanawa.composition.naming import is_folder
from kanawa_runtime.exit_codes import table_markdown

DOCS = pathlib.Path(__file__).parents[2] / "docs"
VERBS = core_verbs() | plugin_verbs(core_verbs())
EXAMPLES = [line for verb in VERBS.values() for line in verb.example.splitlines() if line.startswith("kanawa ")]
#: Verbs whose output no machine reads: one writes a script.
FOR_PEOPLE = {"completion"}


def parsed(line):
    return build_parser(VERBS).parse_args(shlex.split(line)[1:])


def test_every_verb_has_an_example():
    shown = {line.split()[1] for line in EXAMPLES}
    assert shown == set(VERBS)


def test_every_verb_writes_json():
    without = {name for name, verb in verb_parsers(build_parser(VERBS)).items() if not writes_json(verb)}
    assert without == FOR_PEOPLE


def writes_json(parser):
    """Returns whether a verb takes --json, or each of its actions does."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return "--json" in parser.format_help() or any(
        all(writes_json(one) for one in action.choices.values()) for action in actions
    )


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_works(line, monkeypatch):
    # The mesh rule itself: to search for a faster placement beside it is tested elsewhere, and takes 13 s for one line.
    monkeypatch.setattr("kanawa.composition.experiment.placed", lambda question: None)
    args = parsed(line)
    experiment = getattr(args, "experiment", None)
    if experiment is None or getattr(args, "component", None) or is_folder(experiment):
        return
    targets = [None] if args.on is None else args.on.split(",")
    for target in targets:
        # Nobody's files and services are here; what an example sets, modifies and names must be.
        modifiers = [text for text in args.modify if "tensorboard" not in text]
        kn.compose(experiment, target, modifiers, args.set)


@pytest.mark.parametrize("page", ["launch.md", "command-line.md"])
def test_the_table_of_exit_codes_is_the_one_of_the_documentation(page):
    assert table_markdown() in (DOCS / page).read_text()
