"""Every example in a verb's help is a command that works: it parses, and what it composes is there."""

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
    without = {name for name, verb in verb_parsers(build_parser(VERBS)).items() if "--json" not in verb.format_help()}
    assert without == FOR_PEOPLE


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_works(line):
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
