"""DPO and KTO beside `trl`: the same random small Llama, the same pairs, ten steps; then tokens a second of both.

    python benchmarks/preferences_beside_trl.py --torch-python PATH [--write FIXTURE]

PATH is the Python of an environment with torch, transformers and trl; trl runs there, in a process of its own, as this
same file. Losses are compared with one pair a row, since then both sides see the same batches. Speed is measured with
rows packed as a user's are, over the tokens that aren't padding, from the third step on.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

STEPS, BATCH, LENGTH, SPEED_STEPS = 10, 8, 256, 12
RATE = 1e-3
LOSSES = ("dpo", "kto")


def main() -> None:
    """Compares, or runs trl's side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-python", help="Python of the environment with trl")
    parser.add_argument("--write", type=pathlib.Path, help="write trl's losses here, for tests")
    parser.add_argument("--small", action="store_true", help="a model so small that its losses can be a fixture")
    parser.add_argument("--trl", type=pathlib.Path, help="run trl's side in this folder")
    args = parser.parse_args()
    if args.trl is not None:
        trl_side(args.trl, small=args.small)
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(pathlib.Path(folder), args)


def compare(folder: pathlib.Path, args: argparse.Namespace) -> None:
    """Runs both sides and prints losses and rates."""
    write_data(folder)
    flags = ["--small"] if args.small else []
    subprocess.run([args.torch_python, __file__, "--trl", str(folder), *flags], check=True)
    theirs = json.loads((folder / "trl.json").read_text())
    if args.write:
        kept = {name: theirs[name]["losses"] for name in LOSSES} | {"versions": theirs["versions"]}
        args.write.write_text(json.dumps(kept, indent=1) + "\n")
    say(f"versions: {theirs['versions']}")
    for name in LOSSES:
        losses = kanawa_losses(folder, name)
        apart = max(abs(a - b) for a, b in zip(losses, theirs[name]["losses"], strict=True))
        say(f"{name}: losses {losses[0]:.6f} … {losses[-1]:.6f}, largest difference from trl {apart:.1e}")
        ours, other = kanawa_rate(folder, name), theirs[name]["tokens_per_second"]
        say(f"{name}: {ours:,.0f} tokens/s, trl {other:,.0f} tokens/s: {ours / other:.2f} times")


def write_data(folder: pathlib.Path) -> None:
    """Writes pairs of many lengths, and judged completions, all of them written by a small generator."""
    state = 7

    def draw(below: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % below

    def text(words: int) -> str:
        return " ".join("".join(chr(97 + draw(26)) for _ in range(1 + draw(6))) for _ in range(words))

    count = BATCH * (STEPS + SPEED_STEPS * 8)
    rows = [(text(2 + draw(6)), " " + text(1 + draw(12)), " " + text(1 + draw(12))) for _ in range(count)]
    pairs = [{"prompt": p, "chosen": c, "rejected": r} for p, c, r in rows]
    judged = [{"prompt": p, "completion": (c, r)[i % 2], "label": i % 2 == 0} for i, (p, c, r) in enumerate(rows)]
    for name, records in (("dpo", pairs), ("kto", judged)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


# --- this side -------------------------------------------------------------------------------------------------------


def trained(folder: pathlib.Path, name: str, run: str, steps: int, **values: object) -> list[dict]:
    """Returns the step events of a run on the folder's model."""
    import kanawa as kn

    settings = {
        "batch_size": BATCH, "data.sequence_length": LENGTH, "data.validation_one_in": 0, "data.shuffle": False,
        "data.window_documents": BATCH, "learner.clip_norm": None, "learner.optimizer.b2": 0.999,
        "learner.optimizer.weight_decay": 0.0, "evaluation.every_steps": 10_000, "evaluation.final_batches": 1,
        "checkpoints.every_steps": 10_000,
        **values,
    }  # fmt: skip
    schedule = kn.component("schedules", "constant").Config(peak=RATE)
    kn.train(
        str(folder / "model"), run=str(folder / run), steps=steps, data=str(folder / f"{name}.jsonl"),
        modify=[f"{name}:beta=0.1"], set={**settings, "learner.schedule": schedule}, progress=False,
    )  # fmt: skip
    lines = (folder / run / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "step"]


def kanawa_losses(folder: pathlib.Path, name: str) -> list[float]:
    """Returns the losses of ten steps with one pair a row: batches are those of the file's order."""
    block = {"data.mismatch_within": BATCH} if name == "kto" else {}
    return [
        event["loss"] for event in trained(folder, name, f"{name}-equal", STEPS, **{"data.pairs_per_row": 1}, **block)
    ]


def kanawa_rate(folder: pathlib.Path, name: str) -> float:
    """Returns tokens that aren't padding a second, of packed rows."""
    import numpy as np
    from kanawa_runtime.runs.run_directory import OF_TRAINING, read_config

    events = trained(folder, name, f"{name}-speed", SPEED_STEPS, **{"data.window_documents": 4096})
    source = read_config(folder / f"{name}-speed", OF_TRAINING).data.clone().build()
    rows = range(2 * BATCH, SPEED_STEPS * BATCH)
    tokens = sum(int(np.count_nonzero(source.row(index)["segment_ids"])) for index in rows)
    return tokens / sum(event["seconds"] for event in events[2:])


# --- trl's side ------------------------------------------------------------------------------------------------------


def trl_side(folder: pathlib.Path, *, small: bool) -> None:
    """Writes the model, trains it by trl, and writes losses and rates."""
    import datasets
    import torch
    import transformers
    import trl

    write_model(folder / "model", small=small)
    found: dict[str, object] = {
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "trl": trl.__version__}
    }
    for name, config_class, trainer_class in (
        ("dpo", trl.DPOConfig, trl.DPOTrainer),
        ("kto", trl.KTOConfig, trl.KTOTrainer),
    ):

        class Recorded(trainer_class):  # type: ignore[misc, valid-type]
            losses, tokens, times = [], [], []  # noqa: RUF012

            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):  # noqa: ANN001, ANN202, D102
                masks = [value for key, value in inputs.items() if key.endswith("attention_mask")]
                self.tokens.append(int(sum(mask.sum() for mask in masks)))
                out = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
                self.losses.append(float((out[0] if return_outputs else out).detach()))
                return out

            def training_step(self, *args, **kwargs):  # noqa: ANN002, ANN003, ANN202, D102
                out = super().training_step(*args, **kwargs)
                self.times.append(time.perf_counter())
                return out

        settings = config_class(
            output_dir=str(folder / f"trl-{name}"), per_device_train_batch_size=BATCH, max_steps=STEPS + SPEED_STEPS,
            learning_rate=RATE, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=0.0, adam_beta2=0.999,
            optim="adamw_torch", beta=0.1, bf16=False, gradient_checkpointing=False, use_cpu=True, report_to="none",
            logging_steps=1000, save_strategy="no", train_sampling_strategy="sequential", max_length=LENGTH,
            disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
        data = datasets.load_dataset("json", data_files=str(folder / f"{name}.jsonl"), split="train")
        trainer = Recorded(model=model, args=settings, train_dataset=data, processing_class=tokenizer)
        trainer.train()
        seconds = trainer.times[-1] - trainer.times[STEPS - 1]
        rate = sum(trainer.tokens[STEPS:]) / seconds
        found[name] = {"losses": trainer.losses[:STEPS], "tokens_per_second": rate}
    (folder / "trl.json").write_text(json.dumps(found))


def write_model(folder: pathlib.Path, *, small: bool) -> None:
    """Writes a random Llama and a tokenizer of single bytes."""
    import tokenizers
    import torch
    import transformers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(["<pad>", "</s>", *alphabet])}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=library, pad_token="<pad>", eos_token="</s>")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    width, layers = (32, 2) if small else (256, 4)
    config = transformers.LlamaConfig(
        vocab_size=320, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH, tie_word_embeddings=False,
        pad_token_id=0, bos_token_id=None, eos_token_id=1,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def say(line: str) -> None:
    """Writes one line."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
