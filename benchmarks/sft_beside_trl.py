"""Supervised fine-tuning beside TRL's SFTTrainer: the same random Llama and conversations, and the losses of ten steps.

    python benchmarks/sft_beside_trl.py --python ENVIRONMENT_WITH_TRL/bin/python

They must agree to 1e-5, with one conversation a row on either side. `trl_speed.py` compares speed.
"""

import argparse
import pathlib
import sys
import tempfile

from beside_trl import Side, apart, our_side, side_of, theirs, write_fixture
from trl_folder import write_chats, write_model

MODEL = {"vocab": 512, "width": 256, "layers": 4, "heads": 8, "kv_heads": 8}
SMALL = {"vocab": 384, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2}
BATCH, RATE, LENGTH, SHORT, COMPARED, TOLERANCE = 16, 1e-3, 256, 128, 10, 1e-5
SIZES = {"batch": BATCH, "rate": RATE}


def write_folder(folder: pathlib.Path, *, small: bool) -> int:
    """Writes the model and conversations; returns the model's parameters."""
    write_chats(folder / "chat.jsonl", rows=BATCH * COMPARED, longest=12 if small else 60)
    return write_model(folder / "model", **(SMALL if small else MODEL))


def alone(folder: pathlib.Path, steps: int, length: int) -> Side:
    """Returns our training with one conversation a row."""
    from kanawa_runtime.data.packing import OnePerRow

    fields = {"packing": OnePerRow.Config(), "sequence_length": length}
    return our_side(folder, "alone", "chat.jsonl", ["sft"], steps=steps, **SIZES, **fields)


def main() -> None:
    """Trains on either side and prints the comparison; exits 1 where losses differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="the Python of an environment with trl, transformers and torch")
    parser.add_argument("--small", action="store_true", help="a model so small that its losses can be a fixture")
    parser.add_argument("--write", type=pathlib.Path, help="write TRL's losses here, for tests")
    args = parser.parse_args()
    say = sys.stdout.write
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        parameters = write_folder(folder, small=args.small)
        made = theirs(args.python, "sft", folder=name, steps=COMPARED, **SIZES)
        say(f"{parameters:,} parameters; {made['versions']}\n")
        trl, ours = side_of(made), alone(folder, COMPARED, SHORT if args.small else LENGTH)
        if args.write:
            write_fixture(args.write, pathlib.Path(__file__).name, made["versions"], {"sft": trl.losses})
    difference = apart(ours.losses, trl.losses)
    say(f"losses of {COMPARED} steps differ by {difference:.1e} at most (relative); allowed {TOLERANCE:.0e}\n")
    sys.exit(0 if difference <= TOLERANCE else 1)


if __name__ == "__main__":
    main()
