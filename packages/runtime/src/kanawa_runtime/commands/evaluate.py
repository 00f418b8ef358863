"""`kanawa eval`: the held-out loss of a run's checkpoint."""

import argparse
import json

from kanawa.cli.arguments import DATA_HELP
from kanawa.cli.output import write
from kanawa.plugins import Command
from kanawa.status import stage


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="eval",
        help="evaluate a run on its held-out split",
        configure=configure,
        run=run,
        example="kanawa eval runs/quickstart --json\nkanawa eval downloads/my-model --data 'mytext/**/*.txt'",
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("run_directory", metavar="RUN", help="a run directory, or a Hugging Face folder")
    parser.add_argument("--data", metavar="DATA", help=DATA_HELP)
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint to use (default: the newest)")
    parser.add_argument("--on", metavar="TARGET", help="target to run on (default: this machine)")
    parser.add_argument("--set", action="append", metavar="PATH=VALUE", help="override a config value")
    parser.add_argument("--json", action="store_true", help="write JSON for a machine to read")


def run(args: argparse.Namespace) -> int:
    """Evaluates; returns 0."""
    from kanawa.errors import UsageError

    from kanawa_runtime.process import prepare_process
    from kanawa_runtime.runs.open_run import open_run
    from kanawa_runtime.train.evaluate import Evaluator
    from kanawa_runtime.train.placement import check_vocabulary

    prepare_process()
    overrides = tuple(args.set or ())
    with stage(f"reading {args.run_directory}"):
        opened = open_run(args.run_directory, target=args.on, overrides=overrides, step=args.step, data=args.data)
    cfg = opened.composition.config
    problem = check_vocabulary(opened.trainer.source, cfg.model.vocab_size) if args.data else ""
    if problem:
        raise UsageError(problem)
    program = opened.trainer.programs(opened.environment)["eval_step"]
    with opened.environment.active(), stage("evaluating"):
        scores = Evaluator(cfg, program).evaluate(opened.params, opened.state)
    if scores is None:
        message = (
            f"the data of {args.run_directory} has no held-out split to evaluate on; give --data 'mytext/**/*.txt', "
            "or the name of an experiment"
        )
        raise UsageError(message)
    record = {"run": args.run_directory, "step": opened.step, **scores}
    write(json.dumps(record) if args.json else "\n".join(f"{k:>14}  {v}" for k, v in record.items()))
    return 0
