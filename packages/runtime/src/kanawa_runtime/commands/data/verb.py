"""`kanawa data`: `inspect` shows what the model will see, `reference` writes what a model says of preferences."""

import argparse

from kanawa.cli.arguments import experiment_arguments, json_argument
from kanawa.errors import UsageError
from kanawa.plugins import Command


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="data",
        help="look at what a model will see of its data, or write what a reference model says of it",
        configure=configure,
        run=run,
        example=(
            "kanawa data inspect quickstart\n"
            "kanawa data inspect quickstart --data 'mytext/**/*.txt' --rows 3 --from 100\n"
            "kanawa data inspect downloads/Llama-3.2-1B --data chat.jsonl --modify sft\n"
            "kanawa data inspect quickstart --held-out --json\n"
            "kanawa data inspect vit-tiny --data pictures/ --modify random-crop\n"
            "kanawa data reference downloads/Llama-3.2-1B --data pairs.jsonl --modify dpo --out known.jsonl"
        ),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    inspect = actions.add_parser(
        "inspect",
        help="rows decoded, masked tokens or pictures, packing efficiency, shares of sources, duplicates, lengths",
        description="Shows rows as the model gets them, and figures over a sample of rows. Masked tokens are dim, or "
        "stand in [[…]] where there are no colours; nothing is trained.",
    )
    experiment_arguments(inspect)
    inspect.add_argument("--rows", type=int, default=2, metavar="N", help="rows to show (default: 2)")
    inspect.add_argument(
        "--from", dest="first", type=int, default=0, metavar="R", help="first row to show (default: 0)"
    )
    inspect.add_argument("--sample", type=int, default=256, metavar="N", help="rows of the figures (default: 256)")
    inspect.add_argument("--held-out", action="store_true", help="the held-out rows, not those that are trained on")
    json_argument(inspect)
    reference = actions.add_parser(
        "reference",
        help="the log-probabilities of a reference model, written beside records of preferences",
        description="Scores the completions of --data with the model of a run or folder and writes the records with "
        "their sums, and a digest of the model and of what was scored. Training with reference=precomputed needs no "
        "reference in memory, and checks the digests.",
    )
    experiment_arguments(reference)
    reference.add_argument("--out", required=True, metavar="FILE", help="a new file of JSON Lines")
    json_argument(reference)


def run(args: argparse.Namespace) -> int:
    """Does what is asked; returns 0."""
    if args.action is None:
        message = "kanawa data: say what to do: inspect or reference"
        raise UsageError(message)
    if args.action == "reference":
        from kanawa_runtime.commands.data.reference import reference

        return reference(args)
    for option, value, least in (("--rows", args.rows, 0), ("--from", args.first, 0), ("--sample", args.sample, 1)):
        if value < least:
            message = f"{option} is {value}, expected at least {least}"
            raise UsageError(message)
    from kanawa_runtime.commands.data.inspect import inspect

    return inspect(args)
