"""The losses of GRPO and its variants beside TRL's GRPOTrainer: same random model, same completions, step by step.

    python benchmarks/grpo_beside_trl.py --torch /path/to/python-with-trl

Both train ten steps on given completions with the log-probabilities they were drawn with, by AdamW in fp32. Losses,
which lie around zero, have to be equal to 1e-5; tokens a second (padding left out) are of the median step, without the
first three. Drawing isn't part of it: TRL draws with transformers or vLLM, which `serving.py` is compared with.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import kanawa as kn
import numpy as np
from kanawa.arrays.tree import unflatten_paths
from kanawa.contracts import Environment, RolloutBatch
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_runtime.data.copying import Copying
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.rollouts.rewards import exact_match
from kanawa_runtime.train.trainer import Trainer

HERE = Path(__file__).parent
SIZES = {"vocab": 512, "width": 128, "layers": 2, "rows": 16, "group": 8, "steps": 10, "rate": 1e-4}
PROMPT, COMPLETION = 16, 48
#: TRL's arguments, and ours, of each variant. TRL's `epsilon_high` of CISPO is the bound itself.
VARIANTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "grpo": ({"loss_type": "grpo", "low": 0.2, "high": 0.2, "level": "token"}, ()),
    "dapo": ({"loss_type": "dapo", "low": 0.2, "high": 0.28, "level": "token"}, ("dapo",)),
    "gspo": ({"loss_type": "grpo", "low": 3e-4, "high": 4e-4, "level": "sequence"}, ("gspo",)),
    "cispo": ({"loss_type": "cispo", "low": 0.2, "high": 5.0, "level": "token"}, ("cispo",)),
}


def completions() -> dict[str, np.ndarray]:
    """Returns TRL's arrays for all steps: prompts are padded on the left, completions on the right."""
    rng, steps, rows = np.random.default_rng(0), SIZES["steps"], SIZES["rows"]
    shapes = {"prompt": PROMPT, "completion": COMPLETION}
    made: dict[str, np.ndarray] = {}
    for name, length in shapes.items():
        counts = rng.integers(length // 4, length + 1, (steps, rows, 1))
        places = np.arange(length)
        mask = places >= length - counts if name == "prompt" else places < counts
        made[f"{name}_mask"] = mask.astype(np.int64)
        made[f"{name}_ids"] = rng.integers(2, SIZES["vocab"], (steps, rows, length)) * mask
    rewards = rng.random((steps, rows // SIZES["group"], SIZES["group"])).astype(np.float32)
    gains = (rewards - rewards.mean(2, keepdims=True)) / (rewards.std(2, keepdims=True) + 1e-4)
    made["advantages"] = gains.reshape(steps, rows)
    # About what a random model gives each token: ratios lie around one, some beyond the bounds.
    noise = 0.15 * rng.standard_normal((steps, rows, COMPLETION))
    made["old_per_token_logps"] = (-np.log(SIZES["vocab"]) + noise).astype(np.float32)
    return made


def rows_of(made: dict[str, np.ndarray], step: int) -> RolloutBatch:
    """Returns a step's rows as Kanawa lays them out: prompt and completion without padding between."""
    shape = SIZES["rows"], PROMPT + COMPLETION
    ids, targets, segments = (np.zeros(shape, np.int32) for _ in range(3))
    weights, gains, old = (np.zeros(shape, np.float32) for _ in range(3))
    places = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
    for row in range(shape[0]):
        asked, drawn = (made[f"{n}_ids"][step, row][made[f"{n}_mask"][step, row] > 0] for n in ("prompt", "completion"))
        tokens = np.concatenate([asked, drawn])
        count, written = len(tokens) - 1, slice(len(asked) - 1, len(tokens) - 1)
        ids[row, :count], targets[row, :count], segments[row, :count] = tokens[:-1], tokens[1:], 1
        weights[row, written], gains[row, written] = 1.0, made["advantages"][step, row]
        old[row, written] = made["old_per_token_logps"][step, row, : len(drawn)]
    return RolloutBatch(ids, targets, places, segments, weights, gains, old, old)


def ours(folder: Path, made: dict[str, np.ndarray], modifiers: tuple[str, ...]) -> tuple[list[float], list[float]]:
    """Returns losses and seconds of the trainer's own step on these rows."""
    stored = HuggingFaceStore().load(folder / "model")
    optimizer = kn.component("optimizers", "adamw").Config(weight_decay=0.0, b2=0.999)
    schedule = kn.component("schedules", "constant").Config(peak=SIZES["rate"])
    cfg: Any = Trainer.Config(
        model=stored.config, data=Copying.Config(sequence_length=PROMPT + COMPLETION), batch_size=SIZES["rows"],
        steps=SIZES["steps"], learner=Learner.Config(optimizer=optimizer, schedule=schedule, clip_norm=None),
    )  # fmt: skip
    for name, fields in (("grpo", {"reward": exact_match, "new_tokens": COMPLETION}), *((m, {}) for m in modifiers)):
        cfg = kn.component("modifiers", name).Config(**fields).build()(cfg)
    # The old log-probabilities are the batch's.
    cfg.rollouts.set(off_policy=True)
    trainer = cfg.freeze().build()
    program = trainer.programs(Environment())["train_step"].lower().compile()
    state = jax.jit(trainer.init)()
    params = unflatten_paths({path: jax.numpy.asarray(array) for path, array in stored.params.items()})
    state = state._replace(params=params, opt=trainer.rule.init(stored_flat(stored.params)))
    losses, seconds = [], []
    for step in range(SIZES["steps"]):
        began = time.perf_counter()
        state, report = program(state, rows_of(made, step))
        losses.append(report.read()["loss"])
        jax.block_until_ready(state)
        seconds.append(time.perf_counter() - began)
    return losses, seconds


def stored_flat(params: Any) -> dict[str, jax.Array]:
    """Returns stored parameters as arrays of the device."""
    return {path: jax.numpy.asarray(array) for path, array in params.items()}


def theirs(python: str, folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns what TRL's side prints."""
    command = [python, str(HERE / "grpo_trl_side.py"), str(folder), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"TRL's side failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Prints a line for each variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", required=True, help="the Python of an environment with trl")
    parser.add_argument("--only", choices=VARIANTS, nargs="*", default=list(VARIANTS))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder, made = Path(place), completions()
        told = theirs(args.torch, folder, {**SIZES, "make": True})
        np.savez(folder / "completions.npz", **made)
        tokens = [float(made["prompt_mask"][i].sum() + made["completion_mask"][i].sum()) for i in range(SIZES["steps"])]
        versions = {"kanawa-runtime": version("kanawa-runtime"), "jax": version("jax"), **told["versions"]}
        sys.stdout.write(f"{told['parameters']:,} parameters; {versions}; load {os.getloadavg()[0]:.1f}\n")
        for name in args.only:
            settings, modifiers = VARIANTS[name]
            other = theirs(args.torch, folder, {**SIZES, **settings, "completion": COMPLETION})
            losses, seconds = ours(folder, made, modifiers)
            apart = max(abs(a - b) for a, b in zip(losses, other["losses"], strict=True))
            rate, their_rate = (
                statistics.median(t / s for t, s in zip(tokens[3:], spent[3:], strict=True))
                for spent in (seconds, other["seconds"])
            )
            sys.stdout.write(
                f"{name}: losses differ by at most {apart:.1e} over {len(losses)} steps "
                f"({losses[0]:+.5f} to {losses[-1]:+.5f}); "
                f"{rate:,.0f} tokens/s, TRL {their_rate:,.0f}: {rate / their_rate:.2f} times\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
