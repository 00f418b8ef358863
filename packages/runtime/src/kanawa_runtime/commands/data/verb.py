"""`kanawa data inspect`: what the model will see."""

import argparse

from kanawa.cli.arguments import experiment_arguments, json_argument
from kanawa.errors import UsageError
from kanawa.plugins import Command


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="data",
        help="look at what a model will see of its data",
        configure=configure,
        run=run,
        example=(
            "kanawa data inspect quickstart\n"
            "kanawa data inspect quickstart --data 'mytext/**/*.txt' --rows 3 --from 100\n"
            "kanawa data inspect downloads/Llama-3.2-1B --data chat.jsonl --modify sft\n"
            "kanawa data inspect quickstart --held-out --json"
        ),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    inspect = actions.add_parser(
        "inspect",
        help="rows decoded, masked tokens, segments, packing efficiency, shares of sources, duplicates, lengths",
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


def run(args: argparse.Namespace) -> int:
    """Inspects; returns 0."""
    if args.action is None:
        message = "kanawa data: say what to do: inspect"
        raise UsageError(message)
    for option, value, least in (("--rows", args.rows, 0), ("--from", args.first, 0), ("--sample", args.sample, 1)):
        if value < least:
            message = f"{option} is {value}, expected at least {least}"
            raise UsageError(message)
    from kanawa_runtime.commands.data.inspect import inspect

    return inspect(args)
