"""DPO and KTO beside `trl`: the same random small Llama, the same pairs, and the losses of ten steps.

    python benchmarks/preferences_beside_trl.py --torch-python PATH [--small] [--write FIXTURE]

PATH is the Python of an environment with torch, transformers and trl; trl runs there, in a process of its own. Losses
are compared with one pair a row, since then both sides see the same batches. `trl_speed.py` compares speed.
"""

import argparse
import pathlib
import sys
import tempfile

from beside_trl import Side, apart, our_side, side_of, theirs, write_fixture
from trl_folder import write_model, write_preferences

MODEL = {"vocab": 384, "width": 256, "layers": 4, "heads": 4, "kv_heads": 2}
SMALL = {"vocab": 384, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2}
STEPS, BATCH, LENGTH, SHORT, RATE, BETA = 10, 8, 256, 96, 1e-3, 0.1
LOSSES = ("dpo", "kto")


def write_folder(folder: pathlib.Path, *, small: bool) -> int:
    """Writes the model and both files of preferences; returns the model's parameters."""
    write_preferences(folder, rows=BATCH * STEPS, longest=4 if small else 12)
    return write_model(folder / "model", **(SMALL if small else MODEL))


def equal(folder: pathlib.Path, name: str, length: int) -> Side:
    """Returns ten steps with one pair a row: batches are those of the file's order."""
    fields = {"pairs_per_row": 1, "window_documents": BATCH, "sequence_length": length}
    return ours(folder, name, f"{name}-equal", STEPS, **fields, **({"mismatch_within": BATCH} if name == "kto" else {}))


def ours(folder: pathlib.Path, name: str, run: str, steps: int, **fields: object) -> Side:
    """Returns a training by a loss on its file."""
    sizes = {"steps": steps, "batch": BATCH, "rate": RATE}
    return our_side(folder, run, f"{name}.jsonl", [f"{name}:beta={BETA}"], **sizes, **fields)


def main() -> None:
    """Runs both sides and prints losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-python", required=True, help="Python of the environment with trl")
    parser.add_argument("--write", type=pathlib.Path, help="write trl's losses here, for tests")
    parser.add_argument("--small", action="store_true", help="a model so small that its losses can be a fixture")
    args = parser.parse_args()
    found, versions, say = {}, {}, sys.stdout.write
    length = SHORT if args.small else LENGTH
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        parameters = write_folder(folder, small=args.small)
        for name in LOSSES:
            sizes = {"steps": STEPS, "batch": BATCH, "rate": RATE, "beta": BETA, "length": length}
            told = theirs(args.torch_python, "preferences", folder=place, loss=name, **sizes)
            if not versions:
                versions = told["versions"]
                say(f"{parameters:,} parameters; {versions}\n")
            trl, mine = side_of(told), equal(folder, name, length)
            found[name] = trl.losses
            difference = apart(mine.losses, found[name])
            first, last = mine.losses[0], mine.losses[-1]
            say(f"{name}: losses {first:.6f} … {last:.6f}, largest difference from trl {difference:.1e}\n")
            sys.stdout.flush()
    if args.write:
        write_fixture(args.write, pathlib.Path(__file__).name, versions, found)


if __name__ == "__main__":
    main()
