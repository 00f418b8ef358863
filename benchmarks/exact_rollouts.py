"""What exact rollouts cost, and how many tokens differ: GRPO steps with and without `rollouts.exact` in one process.

    python benchmarks/exact_rollouts.py [--steps 12] [--pairs 3] [--dtypes float32,bfloat16] [--microbatches 8]
    python benchmarks/exact_rollouts.py --small --tokens 100000 --models attention,mixture,lora

Prints, by dtype: tokens, those whose log-probability by the training step differs from the one under which they were
drawn (both modes), and the ratio of the median processor time of a step, exact to usual, the modes' steps interleaved
in pairs of runs; then the parts of a step: drawing, forward passes, and the rest of the step. Both sides are this
project's own, with the same engine; the figure is the mode's cost. With `--tokens`, only exact steps are taken, until
so many tokens are drawn, and those that differ are counted.
"""

import argparse
import collections
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from kanawa.composition.experiment import compose
from kanawa_layers.recipes.llama import llama
from kanawa_layers.recipes.mixtral import mixtral
from kanawa_runtime.data.copying import Copying
from kanawa_runtime.rollouts.grpo import GRPO
from kanawa_runtime.rollouts.rewards import matching_tokens
from kanawa_runtime.rollouts.sampler import EngineSampler
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.split_step import SplitStep
from kanawa_runtime.train.stepping import Stepper
from kanawa_runtime.train.trainer import Trainer

ROWS, PROMPT = 32, 64
LARGE: dict[str, Any] = {"num_layers": 8, "input_dim": 256, "num_heads": 8, "vocab_size": 4096}
SMALL: dict[str, Any] = {"num_layers": 4, "input_dim": 128, "num_heads": 4, "vocab_size": 2048}
MODELS: dict[str, Callable[..., Any]] = {
    "attention": lambda **sizes: llama(**sizes, num_kv_heads=4, hidden_dim=3 * sizes["input_dim"]),
    "mixture": lambda **sizes: mixtral(
        **sizes, num_kv_heads=4, hidden_dim=sizes["input_dim"], num_experts=4, top_k=2
    ),
}  # fmt: skip


def experiment(args: argparse.Namespace, model: str, exact: bool, steps: int) -> Trainer.Config:
    """Returns GRPO of a model of 8 layers and 256 channels on completions of 128 tokens, or with `--small` of 80."""
    sizes, new = (SMALL, 80) if args.small else (LARGE, 128)
    data = Copying.Config(sequence_length=PROMPT + new, string_length=48, letters=sizes["vocab_size"] - 96)
    cfg = Trainer.Config(model=MODELS[model](**sizes), data=data, batch_size=ROWS, steps=steps)
    cfg = GRPO.Config(reward=matching_tokens, group_size=8, new_tokens=new, exact=exact).build()(cfg)
    cfg.rollouts.set(kept_microbatches=args.microbatches if args.kept is None else args.kept, evaluation_prompts=0)
    shapes: dict[str, Any] = {"prefill_sizes": (64,), "prefill_tokens": 64, "batch_sizes": (4, ROWS)}
    cfg.rollouts.engine.set(max_sequences=ROWS, max_batched_tokens=2048, **shapes)
    return cfg


class Parts:
    """Processor seconds of each step of a run, and of its parts."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.parts: collections.Counter[str] = collections.Counter()
        self._watch(Stepper, "take", None)
        self._watch(EngineSampler, "draw", "drawing")
        self._watch(SplitStep, "forward", "forward passes")
        self._watch(SplitStep, "__call__", "backward and update")

    def _watch(self, kind: Any, name: str, part: str | None) -> None:
        plain = getattr(kind, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            if part is None:
                self.began.append(began)
                return plain(*args, **kwargs)
            result = jax.block_until_ready(plain(*args, **kwargs))
            self.parts[part] += time.process_time() - began
            return result

        setattr(kind, name, watched)


def run(
    args: argparse.Namespace, model: str, exact: bool, dtype: str, steps: int, parts: Parts
) -> list[dict[str, Any]]:  # fmt: skip
    """Returns the step events of a fresh run, with `cpu`, the processor seconds from one step to the next."""
    modifiers = [f"compute:dtype={dtype}", *(["lora"] if model == "lora" else [])]
    modifiers += [f"accumulate:microbatches={args.microbatches}"] if args.microbatches > 1 else []
    overrides = ('execution.kernels={"attention": "attention.any.reference"}',) if args.attention == "reference" else ()
    parts.began = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        cfg = experiment(args, "attention" if model == "lora" else model, exact, steps)
        Loop(compose(cfg, None, modifiers, overrides), path).execute()
        events = [event for event in read_events(path / "events.jsonl") if event["event"] == "step"]
    cpu = [later - earlier for earlier, later in zip(parts.began, parts.began[1:], strict=False)]
    return [{**event, "cpu": seconds} for event, seconds in zip(events, cpu, strict=False)]


def difference(events: list[dict[str, Any]]) -> float:
    """Returns the largest difference of a token's log-probabilities."""
    return max(float(event["metrics"]["loss.sampler_difference_most"]) for event in events)


def compare(args: argparse.Namespace, model: str, dtype: str, parts: Parts) -> None:
    """Runs both modes in turn, and prints their ratio."""
    events: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    spent: dict[bool, collections.Counter[str]] = {False: collections.Counter(), True: collections.Counter()}
    for pair in range(args.pairs):
        for exact in (False, True) if pair % 2 == 0 else (True, False):
            parts.parts.clear()
            # The first steps of a run load programs.
            events[exact] += run(args, model, exact, dtype, args.steps + 1, parts)[2:]
            spent[exact].update({name: value / (args.steps + 1) for name, value in parts.parts.items()})
    usual, exact_ones = events[False], events[True]
    tokens = int(sum(event["tokens"] for event in exact_ones))
    cpu = [statistics.median(event["cpu"] for event in of) for of in (usual, exact_ones)]
    passes = statistics.mean(event["forward_passes"] for event in exact_ones)
    again = sum(event["redrawn_tokens"] for event in exact_ones) / tokens
    say(
        f"{model} {dtype}: {tokens} tokens, largest difference {difference(usual):.3g} usual, "
        f"{difference(exact_ones):.3g} exact; median step {cpu[0]:.3f} s of processor time usual, {cpu[1]:.3f} s "
        f"exact, ratio {cpu[1] / cpu[0]:.3f}; {passes:.2f} forward passes, {100 * again:.1f} % of tokens drawn again"
    )
    for exact, of in spent.items():
        shown = ", ".join(f"{name} {value / args.pairs:.3f} s" for name, value in of.items())
        say(f"  {'exact' if exact else 'usual'}: {shown}, of a step")


def count(args: argparse.Namespace, model: str, dtype: str, parts: Parts) -> None:
    """Takes exact steps until there are enough tokens, and prints in how many steps one differs."""
    new = 80 if args.small else 128
    # The last step is not in the list.
    steps = -(-args.tokens // (ROWS * new)) + 1
    events = run(args, model, True, dtype, steps, parts)
    wrong = sum(event["metrics"]["loss.sampler_difference_most"] != 0.0 for event in events)
    passes = statistics.mean(event["forward_passes"] for event in events)
    say(
        f"{model} {dtype}: {int(sum(event['tokens'] for event in events))} tokens in {len(events)} steps; steps with a "
        f"token that differs: {wrong}; largest difference {difference(events):.3g}; {passes:.2f} forward passes"
    )


def say(text: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Compares both modes, or counts tokens, by model and dtype."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=0)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--models", default="attention", help="attention, mixture, lora")
    parser.add_argument("--small", action="store_true", help="4 layers, 128 channels and 80 new tokens")
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--kept", type=int, help="microbatches that stay in memory; all by default")
    parser.add_argument("--attention", choices=["default", "reference"], default="default")
    args = parser.parse_args()
    sizes = f"{args.microbatches} microbatches, {'small' if args.small else 'large'} model"
    say(f"jax {jax.__version__}, {jax.devices()[0].device_kind}, attention {args.attention}, {sizes}")
    parts = Parts()
    for model in args.models.split(","):
        for dtype in args.dtypes.split(","):
            (count if args.tokens else compare)(args, model, dtype, parts)


if __name__ == "__main__":
    main()
