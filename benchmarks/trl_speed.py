"""Tokens a second of SFT, DPO, KTO and GRPO beside TRL, at the best settings that either side has on a CPU.

    python benchmarks/trl_speed.py --torch PYTHON [--only sft dpo …] [--cores 1] [--turns 8] [--block 3]

Sides are processes that take turns of `block` steps (turns.py). TRL runs once for each of its options that may help,
and the ratio is to the fastest. `grpo` is the training step on the completions of `grpo_beside_trl.py`, `drawn` a whole
step with generation. Tokens are those that aren't padding, of prompts and completions; processor time is that of all
threads of a side. With `--cores 1` no thread of either side waits for another one, so that processor time is sound on a
busy machine. `*_beside_trl.py` compare the losses.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from turns import Player, Turns, median_and_interval, pin, play

HERE = Path(__file__).parent
#: Steps before the first turn. GRPO's ten batches are each taken once: those of other numbers of tokens have other
#: programs, and a program's first run takes up to 100 ms longer.
WARM = {"sft": 2, "dpo": 2, "kto": 2, "grpo": 10, "drawn": 2}
#: The model and batch of each method, as those that compare losses have them.
MODEL = {"vocab": 512, "width": 256, "layers": 4, "heads": 8, "kv_heads": 8}
POLICY = {"vocab": 512, "width": 128, "layers": 2, "heads": 4, "kv_heads": 4}
SFT = {"batch": 16, "rate": 1e-3, "length": 256}
PAIRS = {"batch": 8, "rate": 1e-3, "length": 256, "beta": 0.1}
GROUPS = {"batch": 16, "rate": 1e-4, "group": 8, "completion": 48, "prompt": 16}
USUAL_GRPO = {"loss_type": "grpo", "low": 0.2, "high": 0.2, "level": "token"}
COMPILED = {"torch_compile": True}
PACKED = {"packing": True, "max_length": SFT["length"], "per_device_train_batch_size": SFT["batch"] // 4}
#: TRL's own options; DPO's `padding_free` is disabled in 1.16, and KTO and GRPO have none.
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "sft": {"padded": {}, "by length": {"train_sampling_strategy": "group_by_length"}, "packed": PACKED},
    "dpo": {"padded": {}},
    "kto": {"padded": {}},
    "grpo": {"padded": {}},
    "drawn": {"generate": {}, "continuous": {"use_transformers_continuous_batching": True}},
}
KINDS = {"sft": "sft", "dpo": "preferences", "kto": "preferences", "grpo": "grpo", "drawn": "drawn"}


def write(folder: Path, method: str, steps: int) -> int:
    """Writes the model and the data of so many steps; returns the model's parameters."""
    from trl_folder import write_chats, write_model, write_preferences, write_questions

    parameters = write_model(folder / "model", **(POLICY if method in ("grpo", "drawn") else MODEL))
    if method == "sft":
        # One epoch: of a longer one, batches that are grouped by length would be the longest alone.
        write_chats(folder / "chat.jsonl", rows=(steps + 2) * SFT["batch"], longest=60)
    elif method == "drawn":
        write_questions(folder / "questions.jsonl", rows=(steps + 4) * GROUPS["batch"] // GROUPS["group"])
    elif method != "grpo":
        write_preferences(folder, rows=(steps + 2) * PAIRS["batch"] * 8, longest=12)
    else:
        import numpy as np
        from grpo_beside_trl import USUAL, completions

        np.savez(folder / "completions.npz", **completions(USUAL))
    return parameters


# --- our side ------------------------------------------------------------------------------------------------


def settle() -> None:
    """Returns once no step is being computed: the loop begins one before it records the one before."""
    import jax

    for array in jax.live_arrays():
        array.block_until_ready()


def trained(folder: Path, method: str, turns: Turns, steps: int) -> None:
    """Trains by `kn.train`, a turn after each block of steps."""
    from beside_trl import our_side
    from kanawa.plugins import hookimpl, host

    class Watched:
        @hookimpl
        def kanawa_step_ended(self, run: Any, event: Any) -> None:
            turns.stepped()

    host().register(Watched(), "turns")
    turns.about["versions"] = {name: version(name) for name in ("kanawa", "jax")}
    sizes: dict[str, Any] = {"steps": steps}
    if method == "drawn":
        words = f"grpo:reward=trl_speed:odd,group_size={GROUPS['group']},new_tokens={GROUPS['completion']}"
        our_side(
            folder, "ours", "questions.jsonl", [words], **sizes, batch=GROUPS["batch"], rate=GROUPS["rate"],
            more={"services": ()}, sequence_length=GROUPS["completion"] + 80,
        )  # fmt: skip
        return
    given = SFT if method == "sft" else PAIRS
    words = "sft" if method == "sft" else f"{method}:beta={PAIRS['beta']}"
    # Rows of KTO are of two halves, each as long as a row of the others.
    batch = SFT["batch"] // 4 if method == "sft" else PAIRS["batch"] // (4 if method == "kto" else 2)
    our_side(
        folder, "ours", "chat.jsonl" if method == "sft" else f"{method}.jsonl", [words], **sizes, batch=batch,
        rate=given["rate"], sequence_length=given["length"], more={"services": ()},
    )  # fmt: skip


def odd(rollout: Any) -> float:
    """Returns the share of odd ids, as TRL's side rewards."""
    ids = rollout.completion_ids
    return sum(i % 2 for i in ids) / max(len(ids), 1)


def on_completions(folder: Path, turns: Turns, steps: int) -> None:
    """Takes steps on completions with the trainer's own program."""
    from grpo_beside_trl import USUAL, completions, steps_of

    turns.about["versions"] = {name: version(name) for name in ("kanawa", "jax")}
    made = completions(USUAL)
    take = steps_of(folder, USUAL, made, ())
    for step in range(steps):
        take(step % USUAL.steps)
        turns.stepped()


def ours(settings: dict[str, Any]) -> None:
    """Is our side's process."""
    pin(settings["cores"])
    turns, folder = Turns(*settings["turns"], settle), Path(settings["folder"])
    if settings["method"] == "grpo":
        on_completions(folder, turns, settings["steps"])
    else:
        trained(folder, settings["method"], turns, settings["steps"])


# --- comparing -----------------------------------------------------------------------------------------------


def tokens_of(folder: Path, method: str, player: Player, block: int, steps: int) -> list[float]:
    """Returns the tokens of each turn that aren't padding: by count, or `block` times our mean of all steps."""
    if any(player.tokens):
        return [float(count) for count in player.tokens]
    return [block * _mean_tokens(folder, method, steps)] * len(player.seconds)


def _mean_tokens(folder: Path, method: str, steps: int) -> float:
    import numpy as np

    if method == "grpo":
        arrays = np.load(folder / "completions.npz")
        return float(arrays["prompt_mask"].sum() + arrays["completion_mask"].sum()) / len(arrays["advantages"])
    from kanawa_runtime.runs.run_directory import OF_TRAINING, read_config

    cfg = read_config(folder / "ours", OF_TRAINING)
    if method == "drawn":
        lines = [json.loads(line) for line in (folder / "ours" / "events.jsonl").read_text().splitlines()]
        drawn = statistics.fmean(e["tokens"] for e in lines if e["event"] == "step")
        source = cfg.data.clone().build()
        asked = [int((source.row(i)["segment_ids"] > 0).sum()) for i in range(16)]
        return drawn + statistics.fmean(asked) * GROUPS["batch"]
    source, rows = cfg.data.clone().build(), steps * cfg.batch_size
    segments = (source.row(i)["segment_ids"] for i in range(rows))
    # A conversation has a token more than it has targets, which TRL counts; of completions all tokens are in the row.
    return sum(int((row > 0).sum() + (row.max() if method == "sft" else 0)) for row in segments) / steps


def compared(folder: Path, method: str, args: argparse.Namespace) -> dict[str, Any]:
    """Prints the sides of a method; returns its figures."""
    steps = WARM[method] + args.turns * args.block + 2
    parameters = write(folder, method, steps)
    sizes = SFT if method == "sft" else GROUPS if method in ("grpo", "drawn") else PAIRS
    shared = {"folder": str(folder), "steps": steps, "cores": args.cores, "turns": [WARM[method], args.block]}
    commands = {"kanawa": [sys.executable, __file__, "--side", json.dumps({**shared, "method": method})]}
    options = dict(OPTIONS[method]) | ({"compiled": COMPILED} if args.compiled else {})
    options = {name: more for name, more in options.items() if not args.options or name in args.options}
    for name, more in options.items():
        settings = {**shared, **sizes, **USUAL_GRPO, "loss": method, "more": more}
        commands[name] = [args.torch, str(HERE / "trl_side.py"), KINDS[method], json.dumps(settings)]
    environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(HERE)}
    players = play(commands, args.turns, environment, args.lock)
    tokens = {name: tokens_of(folder, method, player, args.block, steps) for name, player in players.items()}
    say = sys.stdout.write
    say(f"{method}: {parameters:,} parameters\n")
    figures: dict[str, Any] = {"parameters": parameters, "sides": {}}
    for name, player in players.items():
        rates = {
            kind: median_and_interval([t / s for t, s in zip(tokens[name], getattr(player, kind), strict=True)])
            for kind in ("seconds", "processor")
        }
        mean = statistics.fmean(tokens[name]) / args.block
        figures["sides"][name] = {"tokens": mean, **rates, "versions": player.about.get("versions")}
        shown = "; ".join(
            f"{middle:,.0f} ({low:,.0f} to {high:,.0f}) a second of {label}"
            for (middle, low, high), label in zip(rates.values(), ("time", "processor time"), strict=True)
        )
        say(f"  {name:12} {mean:6.0f} tokens a step; {shown}\n")
    mine = players["kanawa"]
    for kind, label in (("processor", "processor time"), ("seconds", "time")):
        others = [name for name in players if name != "kanawa"]
        whole = {name: sum(tokens[name]) / sum(getattr(player, kind)) for name, player in players.items()}
        best = max(others, key=whole.__getitem__)
        turns = zip(tokens["kanawa"], getattr(mine, kind), tokens[best], getattr(players[best], kind), strict=True)
        ratio = median_and_interval([(own / spent) / (theirs / time) for own, spent, theirs, time in turns])
        of_sums = whole["kanawa"] / whole[best]
        figures[f"ratio_{kind}"] = (*ratio, of_sums, best)
        middle, low, high = ratio
        say(f"  by {label}: {middle:.2f} ({low:.2f} to {high:.2f}) times TRL, {best}; of sums {of_sums:.2f}\n")
    sys.stdout.flush()
    return figures


def main() -> None:
    """Compares each method and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", help="the Python of an environment with trl")
    parser.add_argument("--only", choices=OPTIONS, nargs="*", default=list(OPTIONS))
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--block", type=int, default=3)
    parser.add_argument("--compiled", action="store_true", help="TRL with torch.compile too, which takes minutes")
    parser.add_argument("--options", nargs="*", help="which of TRL's options; all by default")
    parser.add_argument("--lock", help="a file whose lock is held while sides take turns")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        ours(json.loads(args.side))
        return
    found = {}
    sys.stdout.write(f"{args.cores} core(s) a side; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    for method in args.only:
        with tempfile.TemporaryDirectory() as place:
            found[method] = compared(Path(place), method, args)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
