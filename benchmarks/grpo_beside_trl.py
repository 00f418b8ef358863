"""The losses of GRPO and its variants beside TRL's GRPOTrainer: same random model, same completions, step by step.

    python benchmarks/grpo_beside_trl.py --torch /path/to/python-with-trl

Both train ten steps on given completions with the log-probabilities they were drawn with, by AdamW in fp32. Losses,
which lie around zero, have to be equal to 1e-5. `trl_speed.py` compares speed.
"""

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import kanawa as kn
import numpy as np
from beside_trl import Side, side_of, theirs, write_fixture
from kanawa.arrays.tree import unflatten_paths
from kanawa.composition.environment import environment
from kanawa.composition.experiment import compose
from kanawa.contracts import RolloutBatch
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_runtime.data.copying import Copying
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.process import prepare_process
from kanawa_runtime.rollouts.rewards import exact_match
from kanawa_runtime.train.packed_step import PackedStep, packable
from kanawa_runtime.train.trainer import Trainer
from trl_folder import write_model


@dataclasses.dataclass(frozen=True)
class Sizes:
    """A batch's rows, their groups, and tokens of the longest prompt and completion."""

    model: dict[str, int]
    rows: int
    prompt: int
    completion: int
    group: int = 8
    steps: int = 10
    rate: float = 1e-4


USUAL = Sizes({"vocab": 512, "width": 128, "layers": 2, "heads": 4, "kv_heads": 4}, rows=16, prompt=16, completion=48)
SMALL = Sizes({"vocab": 384, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2}, rows=16, prompt=6, completion=10)
#: TRL's arguments, and ours, of each variant. TRL's `epsilon_high` of CISPO is the bound itself.
VARIANTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "grpo": ({"loss_type": "grpo", "low": 0.2, "high": 0.2, "level": "token"}, ()),
    "dapo": ({"loss_type": "dapo", "low": 0.2, "high": 0.28, "level": "token"}, ("dapo",)),
    "gspo": ({"loss_type": "grpo", "low": 3e-4, "high": 4e-4, "level": "sequence"}, ("gspo",)),
    "cispo": ({"loss_type": "cispo", "low": 0.2, "high": 5.0, "level": "token"}, ("cispo",)),
}


def completions(sizes: Sizes) -> dict[str, np.ndarray]:
    """Returns TRL's arrays for all steps: prompts are padded on the left, completions on the right."""
    rng, steps, rows = np.random.default_rng(0), sizes.steps, sizes.rows
    shapes, vocab = {"prompt": sizes.prompt, "completion": sizes.completion}, sizes.model["vocab"]
    made: dict[str, np.ndarray] = {}
    for name, length in shapes.items():
        counts = rng.integers(length // 4, length + 1, (steps, rows, 1))
        places = np.arange(length)
        mask = places >= length - counts if name == "prompt" else places < counts
        made[f"{name}_mask"] = mask.astype(np.int64)
        made[f"{name}_ids"] = rng.integers(2, vocab, (steps, rows, length)) * mask
    rewards = rng.random((steps, rows // sizes.group, sizes.group)).astype(np.float32)
    gains = (rewards - rewards.mean(2, keepdims=True)) / (rewards.std(2, keepdims=True) + 1e-4)
    made["advantages"] = gains.reshape(steps, rows)
    # About what a random model gives each token: ratios lie around one, some beyond the bounds.
    noise = 0.15 * rng.standard_normal((steps, rows, sizes.completion))
    made["old_per_token_logps"] = (-np.log(vocab) + noise).astype(np.float32)
    return made


def rows_of(sizes: Sizes, made: dict[str, np.ndarray], step: int) -> RolloutBatch:
    """Returns a step's rows as Kanawa lays them out: prompt and completion without padding between."""
    shape = sizes.rows, sizes.prompt + sizes.completion
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


def steps_of(
    folder: Path, sizes: Sizes, made: dict[str, np.ndarray], modifiers: tuple[str, ...]
) -> Callable[[int], float]:
    """Returns what takes the trainer's own step on rows by their number, and returns its loss once it is done."""
    prepare_process()
    stored = HuggingFaceStore().load(folder / "model")
    optimizer = kn.component("optimizers", "adamw").Config(weight_decay=0.0, b2=0.999)
    schedule = kn.component("schedules", "constant").Config(peak=sizes.rate)
    data = Copying.Config(sequence_length=sizes.prompt + sizes.completion)
    cfg: Any = Trainer.Config(
        model=stored.config, data=data, batch_size=sizes.rows, steps=sizes.steps,
        learner=Learner.Config(optimizer=optimizer, schedule=schedule, clip_norm=None),
    )  # fmt: skip
    grpo = {"reward": exact_match, "new_tokens": sizes.completion}
    for name, fields in (("grpo", grpo), *((m, {}) for m in modifiers)):
        cfg = kn.component("modifiers", name).Config(**fields).build()(cfg)
    # The old log-probabilities are the batch's.
    cfg.rollouts.set(off_policy=True)
    # What `kanawa train` runs on this machine, the settings that its backend asks for included.
    composition = compose(cfg, None, (), ())
    trainer = composition.config.build()
    step = trainer.programs(environment(composition))["train_step"]
    program: Any = step.lower().compile()
    if packable(trainer, step):
        program = PackedStep(step, program, lambda smaller: smaller.lower().compile())
    state = jax.jit(trainer.init)()
    flat = {path: jax.numpy.asarray(array) for path, array in stored.params.items()}
    state = state._replace(params=unflatten_paths(flat), opt=trainer.rule.init(dict(flat)))
    held = [state]

    def take(step: int) -> float:
        after, report = program(held.pop(), rows_of(sizes, made, step))
        held.append(after)
        return float(report.read()["loss"])

    return take


def ours(folder: Path, sizes: Sizes, made: dict[str, np.ndarray], modifiers: tuple[str, ...]) -> Side:
    """Returns the losses of the trainer's own step on these rows."""
    take = steps_of(folder, sizes, made, modifiers)
    return Side([take(step) for step in range(sizes.steps)])


def their_side(python: str, folder: Path, sizes: Sizes, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns what TRL's side prints."""
    fields = {"batch": sizes.rows, "group": sizes.group, "steps": sizes.steps, "rate": sizes.rate}
    return theirs(python, "grpo", folder=str(folder), completion=sizes.completion, **fields, **settings)


def main() -> None:
    """Prints a line for each variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", required=True, help="the Python of an environment with trl")
    parser.add_argument("--only", choices=VARIANTS, nargs="*", default=list(VARIANTS))
    parser.add_argument("--small", action="store_true", help="a model so small that its losses can be a fixture")
    parser.add_argument("--write", type=Path, help="write TRL's losses here, for tests")
    args = parser.parse_args()
    sizes, found, versions = SMALL if args.small else USUAL, {}, {}
    made = completions(sizes)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        parameters = write_model(folder / "model", **sizes.model)
        np.savez(folder / "completions.npz", **made)
        for name in args.only:
            settings, modifiers = VARIANTS[name]
            told = their_side(args.torch, folder, sizes, settings)
            other, mine = side_of(told), ours(folder, sizes, made, modifiers)
            if not versions:
                versions = told["versions"]
                here = {"kanawa-runtime": version("kanawa-runtime"), "jax": version("jax"), **versions}
                sys.stdout.write(f"{parameters:,} parameters; {here}\n")
            found[name] = other.losses
            apart = max(abs(a - b) for a, b in zip(mine.losses, other.losses, strict=True))
            sys.stdout.write(
                f"{name}: losses differ by at most {apart:.1e} over {len(mine.losses)} steps "
                f"({mine.losses[0]:+.5f} to {mine.losses[-1]:+.5f})\n"
            )
            sys.stdout.flush()
    if args.write:
        write_fixture(args.write, Path(__file__).name, versions, found)


if __name__ == "__main__":
    main()
