"""The verb `kanawa counting`."""

from collections import Counter

from kanawa.plugins import Command, hookimpl, host


def _configure(parser):
    from kanawa.cli.arguments import json_argument

    json_argument(parser)


def _run(args):
    from kanawa.cli.output import write_json, write_table

    counts = Counter(state.distribution for state in host().components())
    if args.json:
        write_json(counts)
    else:
        write_table(("PACKAGE", "COMPONENTS"), counts.most_common())
    return 0


@hookimpl
def kanawa_commands():
    """Returns the verb."""
    return [Command("counting", "count components", _configure, _run, "kanawa counting --json")]
