"""Best learning rates by width, with and without muP, on a small model and a task made on the spot.

    python benchmarks/width_transfer.py --widths 64,128,256,512,1024 --markdown FILE

The task is a random Markov chain of 64 tokens whose next token depends on the two before it. Every width sees the same
batches. The figure is the mean loss of the last tenth of the steps; the best rate is found between the tried ones by a
parabola through the three best.
"""

import argparse
import functools
import json
import pathlib
import sys
import time

import jax
import kanawa as kn
import numpy as np
from kanawa.contracts import Batch, Environment

VOCAB, LENGTH, ROWS, BASE = 64, 16, 16, 64


@functools.cache
def batches(steps: int) -> tuple[Batch, ...]:
    """Returns the batches of a run; a pure function of their number."""
    random = np.random.default_rng(0)
    logits = 2.0 * random.standard_normal((VOCAB, VOCAB)), 2.0 * random.standard_normal((VOCAB, VOCAB))
    tokens = np.zeros((steps, ROWS, LENGTH + 1), np.int32)
    tokens[..., :2] = random.integers(0, VOCAB, (steps, ROWS, 2))
    for at in range(2, LENGTH + 1):
        score = logits[0][tokens[..., at - 1]] + logits[1][tokens[..., at - 2]]
        tokens[..., at] = np.argmax(score + random.gumbel(size=score.shape), -1)
    ones, places = np.ones((ROWS, LENGTH), np.int32), np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1))
    weights = np.ones((ROWS, LENGTH), np.float32)
    return tuple(Batch(rows[:, :-1], rows[:, 1:], places, ones, weights) for rows in tokens)


def experiment(width: int, rate: float, steps: int, optimizer: str, mup: bool) -> kn.Config:
    """Returns a two-layer Llama of this width and the quickstart's learner, with a constant rate."""
    cfg = kn.experiment("quickstart", modify=f"optimizer:name={optimizer}").config.clone()
    cfg.model.set(input_dim=width, vocab_size=VOCAB)
    cfg.model.embedding.set(init_stddev=0.125)
    cfg.model.stack.set(num_layers=2, scan=True)
    cfg.model.stack.layer.attention.set(num_heads=width // 16, num_kv_heads=width // 16, head_dim=16)
    cfg.model.stack.layer.feed_forward.set(hidden_dim=2 * width)
    cfg.data.set(sequence_length=LENGTH)
    cfg.set(batch_size=ROWS, steps=steps)
    schedule = kn.component("schedules", "constant").Config(peak=rate, warmup_steps=max(1, steps // 10))
    cfg.learner.set(schedule=schedule)
    if mup:
        cfg = kn.component("modifiers", "mup").Config(base_width=BASE).build()(cfg)
    return cfg.freeze()


def loss_of(cfg: kn.Config, steps: int) -> float:
    """Returns the mean loss of the last tenth of a run; infinite where it diverged."""
    programs = cfg.build().programs(Environment())
    state, step = programs["init"].lower().compile()(), programs["train_step"].lower().compile()
    losses = []
    for batch in batches(steps):
        state, report = step(state, batch)
        losses.append(report)
    last = [report.read()["loss"] for report in losses[-max(1, steps // 10) :]]
    return float(np.mean(last)) if np.isfinite(last).all() else float("inf")


def best_rate(rates: list[float], losses: list[float]) -> float:
    """Returns the rate at the bottom of a parabola through the best and its neighbours, in log2 of the rate."""
    index = int(np.argmin(losses))
    if index in (0, len(rates) - 1) or not np.isfinite(losses[index - 1 : index + 2]).all():
        return rates[index]
    x = np.log2(rates[index - 1 : index + 2])
    a, b, _ = np.polyfit(x, losses[index - 1 : index + 2], 2)
    return float(2.0 ** (-b / (2 * a)))


def table(widths: list[int], rates: list[float], steps: int, optimizer: str, mup: bool) -> list[dict[str, object]]:
    """Returns one row a width: losses by rate, and the best rate."""
    rows: list[dict[str, object]] = []
    for width in widths:
        losses = [loss_of(experiment(width, rate, steps, optimizer, mup), steps) for rate in rates]
        rows.append({"width": width, "losses": losses, "best": best_rate(rates, losses)})
        sys.stdout.write(json.dumps(rows[-1]) + "\n")
        sys.stdout.flush()
    return rows


def markdown(name: str, rates: list[float], rows: list[dict[str, object]]) -> str:
    """Returns the rows as a table."""
    head = f"| {name}: width | " + " | ".join(f"{rate:.2g}" for rate in rates) + " | best rate |"
    lines = [head, "|" + "---|" * (len(rates) + 2)]
    for row in rows:
        losses = " | ".join(f"{loss:.3f}" for loss in row["losses"])  # type: ignore[attr-defined]
        lines.append(f"| {row['width']} | {losses} | {row['best']:.3g} |")
    return "\n".join(lines)


def main() -> None:
    """Measures both parametrisations and writes their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--widths", default="64,128,256,512,1024")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--rates", default="-10,-9,-8,-7,-6,-5", help="exponents of 2")
    parser.add_argument("--markdown", type=pathlib.Path)
    args = parser.parse_args()
    widths, rates = [int(width) for width in args.widths.split(",")], [2.0 ** int(e) for e in args.rates.split(",")]
    start, parts = time.perf_counter(), []
    for name, mup in (("muP", True), ("standard", False)):
        parts.append(markdown(name, rates, table(widths, rates, args.steps, args.optimizer, mup)))
    parts.append(f"{args.optimizer}, {args.steps} steps, jax {jax.__version__}, {time.perf_counter() - start:.0f} s")
    sys.stdout.write("\n\n".join(parts) + "\n")
    if args.markdown:
        args.markdown.write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
