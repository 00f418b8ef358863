"""What `kanawa train` and `kanawa launch` both take about a run, and launched processes get as it was typed."""

import argparse


def run_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --steps, --init-from, --branch-from, --leave-out, --eval-data and --require-fused."""
    parser.add_argument("--steps", type=int, metavar="N", help="updates of the run in all; spans a new run's schedule")
    parser.add_argument("--init-from", metavar="DIR", help="start from the model of a run or a Hugging Face folder")
    parser.add_argument(
        "--eval-data", action="append", metavar="[NAME=]DATA", help="evaluate on this as well, all of it; repeatable"
    )
    parser.add_argument(
        "--branch-from", metavar="RUN@STEP", help="a new run goes on from there, optimizer and data position included"
    )
    parser.add_argument(
        "--leave-out", metavar="A:B", help="train on no batch from A to B, counted from 1, from now on; kept in the run"
    )
    parser.add_argument("--require-fused", action="store_true", help="fail where a fused kernel would be refused")
