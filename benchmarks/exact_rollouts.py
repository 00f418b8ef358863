"""What exact rollouts cost, and how many tokens differ: GRPO steps with and without `rollouts.exact` in one process.

    python benchmarks/exact_rollouts.py [--steps 12] [--dtypes float32,bfloat16] [--attention reference]

Prints, by dtype: tokens, those whose log-probability by the training step differs from the one under which they were
drawn (both modes), and the ratio of the median seconds of a step, exact to usual, the modes' steps interleaved in pairs
of runs. Both sides are this project's own; the figure is the mode's cost.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import jax
from kanawa.composition.experiment import compose
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.data.copying import Copying
from kanawa_runtime.rollouts.grpo import GRPO
from kanawa_runtime.rollouts.rewards import matching_tokens
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.trainer import Trainer

ROWS, LENGTH, NEW = 32, 192, 128


def experiment(exact: bool, steps: int) -> Trainer.Config:
    """Returns GRPO of a model of 8 layers and 256 channels on completions of 128 tokens."""
    model = llama(num_layers=8, input_dim=256, num_heads=8, num_kv_heads=4, hidden_dim=768, vocab_size=4096)
    data = Copying.Config(sequence_length=LENGTH, string_length=48, letters=4000)
    cfg = Trainer.Config(model=model, data=data, batch_size=ROWS, steps=steps)
    cfg = GRPO.Config(reward=matching_tokens, group_size=8, new_tokens=NEW, exact=exact).build()(cfg)
    sizes = {"prefill_sizes": (64,), "batch_sizes": (ROWS,), "prefill_tokens": 64}
    cfg.rollouts.engine.set(max_sequences=ROWS, max_batched_tokens=2048, **sizes)
    return cfg


def run(exact: bool, dtype: str, steps: int, overrides: tuple[str, ...]) -> list[dict]:
    """Returns the step events of a fresh run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        Loop(compose(experiment(exact, steps), None, (f"compute:dtype={dtype}",), overrides), path).execute()
        return [event for event in read_events(path / "events.jsonl") if event["event"] == "step"]


def main() -> None:
    """Runs both modes in turn, and prints a line a dtype."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--attention", choices=["default", "reference"], default="default")
    args = parser.parse_args()
    pinned = 'execution.kernels={"attention": "attention.any.reference"}'
    overrides = (pinned,) if args.attention == "reference" else ()
    sys.stdout.write(
        f"jax {jax.__version__}, {jax.devices()[0].device_kind}, attention {args.attention}, {args.pairs} pairs\n"
    )
    for dtype in args.dtypes.split(","):
        events: dict[bool, list[dict]] = {False: [], True: []}
        for pair in range(args.pairs):
            for exact in (False, True) if pair % 2 == 0 else (True, False):
                # The first steps of a run load programs.
                events[exact] += run(exact, dtype, args.steps, overrides)[2:]
        usual, exact_ones = events[False], events[True]
        tokens = int(sum(event["tokens"] for event in exact_ones))
        most = [max(event["metrics"]["loss.sampler_difference_most"] for event in of) for of in (usual, exact_ones)]
        seconds = [statistics.median(event["seconds"] for event in of) for of in (usual, exact_ones)]
        passes = statistics.mean(event["forward_passes"] for event in exact_ones)
        again = sum(event["redrawn_tokens"] for event in exact_ones) / tokens
        sys.stdout.write(
            f"{dtype}: {tokens} tokens, largest difference {most[0]:.3g} usual, {most[1]:.3g} exact; median step "
            f"{seconds[0]:.3f} s usual, {seconds[1]:.3f} s exact, ratio {seconds[1] / seconds[0]:.3f}; "
            f"{passes:.2f} forward passes, {100 * again:.1f} % of tokens drawn again\n"
        )


if __name__ == "__main__":
    main()
