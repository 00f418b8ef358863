"""`kanawa train`: train an experiment, or go on with a run."""

import argparse
import logging

from kanawa.cli.arguments import compose_from, experiment_arguments
from kanawa.plugins import Command


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
            "kanawa train runs/mine --steps 2000\n"
            "kanawa train downloads/Llama-3.2-1B --data 'mytext/**/*.txt' --run runs/tuned\n"
            "exit codes: 0 done; 42 stopped by SIGTERM after saving, run it again; 2 usage; others permanent"
        ),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    experiment_arguments(parser)
    default = "run directory (default: runs/NAME, from a folder runs/NAME-tuned, for a run alone its own)"
    parser.add_argument("--run", dest="directory", metavar="DIR", help=default)
    parser.add_argument("--steps", type=int, metavar="N", help="total number of updates of the run")
    parser.add_argument("--init-from", metavar="DIR", help="start from the model of a run or a Hugging Face folder")
    parser.add_argument("--require-fused", action="store_true", help="fail where a fused kernel would be refused")
    gang = parser.add_argument_group("several processes (all take the same arguments)")
    gang.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0")
    gang.add_argument("--processes", type=int, metavar="N", help="number of processes")
    gang.add_argument("--process-id", type=int, metavar="I", help="index of this process")


def run(args: argparse.Namespace) -> int:
    """Trains; returns the exit code."""
    from kanawa.composition.detect import local_target

    from kanawa_runtime.commands.process import join_gang, prepare_process

    logging.getLogger("kanawa_runtime").setLevel(logging.INFO)
    prepare_process()
    join_gang(args.coordinator, args.processes, args.process_id)
    if args.require_fused:
        args.set.append("execution.require_fused=true")
    composition = compose_from(args, on=args.on or local_target())
    from kanawa_runtime.experiments.folders import run_and_start
    from kanawa_runtime.train.loop import Loop

    directory, initial = run_and_start(composition, args.directory, args.init_from)
    return Loop(composition, directory, steps=args.steps, initial=initial).execute()
