"""Supervised fine-tuning beside TRL's SFTTrainer: the same random Llama and conversations, losses and tokens a second.

    python benchmarks/sft_beside_trl.py --python ENVIRONMENT_WITH_TRL/bin/python [--steps 30]

The losses of the first ten steps must agree to 1e-5. For speed either library reads the same conversations: TRL pads
each batch to its longest row; ours has one conversation a row, and packed rows.
"""

import argparse
import pathlib
import sys
import tempfile

from beside_trl import largest_difference, our_side, their_side, theirs

MODEL = {"vocab": 512, "width": 256, "layers": 4, "rows": 640, "longest": 60}
BATCH, RATE, LENGTH, COMPARED, TOLERANCE = 16, 1e-3, 256, 10, 1e-5


def main() -> None:
    """Trains on either side and prints the comparison; exits 1 where losses differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="the Python of an environment with trl, transformers and torch")
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    say = sys.stdout.write
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        made = theirs(args.python, "folder", folder=name, **MODEL)
        say(f"{made['parameters']:,} parameters; {made['versions']}\n")
        sizes = {"steps": args.steps, "batch": BATCH, "rate": RATE}
        trl = their_side(args.python, "sft", folder=name, **sizes)
        chats = ["--modify", "sft", "--data", str(folder / "chat.jsonl"), "--set", f"data.sequence_length={LENGTH}"]
        one = [*chats, "--set", "data.packing=kanawa_runtime.data.packing:OnePerRow"]
        alone = our_side(folder, "alone", one, **sizes)
        # As many conversations a step as the others have, in fewer rows.
        packed = our_side(folder, "packed", chats, steps=args.steps, batch=BATCH // 4, rate=RATE)
    difference = largest_difference(alone, trl, COMPARED)
    say(f"losses of {COMPARED} steps differ by {difference:.1e} at most (relative); allowed {TOLERANCE:.0e}\n")
    for label, side in (("TRL, padded", trl), ("one a row", alone), ("packed", packed)):
        ratio = side.tokens_per_second / trl.tokens_per_second
        say(f"{label:12} {side.tokens_per_second:9,.0f} tokens/s  {ratio:5.2f} times TRL\n")
    sys.exit(0 if difference <= TOLERANCE else 1)


if __name__ == "__main__":
    main()
