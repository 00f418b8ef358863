"""The other library's side of the comparisons with TRL, run with the Python of an environment that has it.

    python trl_side.py KIND SETTINGS

KIND is `sft`, `preferences`, `grpo` or `drawn`, SETTINGS are JSON: the folder, which `trl_folder.py` wrote, sizes, and
`more`, further arguments of TRL's config. It prints one line of JSON: each step's loss, seconds and tokens, and
versions. With `turns` ([warm steps, steps of a block]) and `cores` it takes turns instead (turns.py).
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from turns import Turns, pin

if __name__ == "__main__":
    # Before torch counts the cores.
    pin(json.loads(sys.argv[2]).get("cores", 1024))

import numpy as np
import torch
import transformers
import trl
from datasets import Dataset, load_dataset


class Recorded:
    """Mixed into a trainer: rows in the file's order, each step's loss in full, seconds and tokens."""

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        if self.args.train_sampling_strategy != "random":
            return super()._get_train_sampler(dataset)
        return torch.utils.data.SequentialSampler(self.train_dataset if dataset is None else dataset)

    def compute_loss(self, model: Any, inputs: Any, **rest: Any) -> Any:
        """Returns the loss, recorded with the batch's tokens."""
        of_rows = [name for name in inputs if name.endswith("attention_mask")] or ["prompt_mask", "completion_mask"]
        masks = [inputs[name] for name in of_rows if name in inputs]
        # Packed rows have no mask, and no padding.
        self.tokens.append(int(sum(mask.sum() for mask in masks)) if masks else inputs["input_ids"].numel())
        made = super().compute_loss(model, inputs, **rest)
        self.losses.append(float((made[0] if isinstance(made, tuple) else made).detach()))
        return made

    def training_step(self, *arguments: Any, **rest: Any) -> Any:
        """Takes a step whose beginning is recorded."""
        if self.turns is not None and self.starts:
            self.turns.about, self.turns.tokens = {"versions": versions()}, self.tokens
            self.turns.stepped()
        self.starts.append(time.perf_counter())
        return super().training_step(*arguments, **rest)


def common(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments that all trainers share: plain AdamW at a constant rate, on the processor in fp32."""
    return {
        "output_dir": str(Path(settings["folder"]) / "theirs"),
        "per_device_train_batch_size": settings["batch"],
        "max_steps": settings["steps"],
        "learning_rate": settings["rate"],
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "max_grad_norm": 0.0,
        "warmup_steps": 0,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1_000_000,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "seed": 0,
        **settings.get("more", {}),
    }


def loaded(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the folder's model and tokenizer, as trainers take them."""
    model = Path(settings["folder"]) / "model"
    return {
        "model": transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        "processing_class": transformers.AutoTokenizer.from_pretrained(model),
    }


def read(settings: dict[str, Any], file: str) -> Dataset:
    """Returns the records of a file of the folder."""
    place = Path(settings["folder"])
    return load_dataset("json", data_files=str(place / file), split="train", cache_dir=str(place / "cache"))


def versions() -> dict[str, str]:
    """Returns those of the libraries that train."""
    return {module.__name__: module.__version__ for module in (torch, transformers, trl)}


def trained(trainer: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Trains; returns losses, seconds and tokens of each step, and versions."""
    trainer.losses, trainer.tokens, trainer.starts = [], [], []
    trainer.turns = Turns(*settings["turns"]) if "turns" in settings else None
    trainer.train()
    # A step's time ends where the next begins, and so includes the update.
    ends = [*trainer.starts[1:], time.perf_counter()]
    seconds = [end - start for start, end in zip(trainer.starts, ends, strict=True)]
    return {"losses": trainer.losses, "seconds": seconds, "tokens": trainer.tokens, "versions": versions()}


def sft(settings: dict[str, Any]) -> dict[str, Any]:
    """Supervised fine-tuning on the assistant's tokens; rows are padded to a batch's longest, or packed by `more`."""

    class Trainer(Recorded, trl.SFTTrainer):
        pass

    arguments = trl.SFTConfig(**{"max_length": None, "assistant_only_loss": True} | common(settings))
    trainer = Trainer(**loaded(settings), args=arguments, train_dataset=read(settings, "chat.jsonl"))
    return trained(trainer, settings)


def preferences(settings: dict[str, Any]) -> dict[str, Any]:
    """DPO or KTO, by `loss`."""
    config, base = {"dpo": (trl.DPOConfig, trl.DPOTrainer), "kto": (trl.KTOConfig, trl.KTOTrainer)}[settings["loss"]]

    class Trainer(Recorded, base):  # type: ignore[misc, valid-type]
        pass

    arguments = config(**common(settings), beta=settings["beta"], max_length=settings["length"])
    data = read(settings, f"{settings['loss']}.jsonl")
    return trained(Trainer(**loaded(settings), args=arguments, train_dataset=data), settings)


class GivenCompletions(Recorded, trl.GRPOTrainer):
    """Takes a step's completions from completions.npz instead of drawing them; the losses are TRL's own."""

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        del generation_batch
        step = len(self.losses) % len(self.completions["advantages"])
        made = {name: torch.from_numpy(array[step]) for name, array in self.completions.items()}
        made["num_items_in_batch"] = made["completion_mask"].sum()
        return made


def grpo(settings: dict[str, Any]) -> dict[str, Any]:
    """GRPO's loss or a variant, by `loss_type`, bounds and level."""
    arguments = trl.GRPOConfig(
        **common(settings), num_generations=settings["group"], max_completion_length=settings["completion"], beta=0.0,
        loss_type=settings["loss_type"], epsilon=settings["low"], epsilon_high=settings["high"],
        importance_sampling_level=settings["level"], temperature=1.0,
    )  # fmt: skip
    asked = Dataset.from_dict({"prompt": ["the"] * settings["batch"] * settings["steps"]})
    trainer = GivenCompletions(
        **loaded(settings), reward_funcs=lambda completions, **_: [0.0] * len(completions), args=arguments,
        train_dataset=asked,
    )  # fmt: skip
    with np.load(Path(settings["folder"]) / "completions.npz") as arrays:
        trainer.completions = dict(arrays)
    return trained(trainer, settings)


class Drawing(Recorded, trl.GRPOTrainer):
    """Draws its own completions."""

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        # Each prompt as often as its group has members.
        return trl.GRPOTrainer._get_train_sampler(self, dataset)


def drawn(settings: dict[str, Any]) -> dict[str, Any]:
    """GRPO with completions that it draws, whose reward is the share of odd ids."""

    def odd(completion_ids: Any, **rest: Any) -> list[float]:
        del rest
        return [sum(i % 2 for i in ids) / max(len(ids), 1) for ids in completion_ids]

    arguments = trl.GRPOConfig(
        **common(settings), num_generations=settings["group"], max_completion_length=settings["completion"], beta=0.0,
        loss_type="grpo", epsilon=0.2, temperature=1.0, shuffle_dataset=False,
    )  # fmt: skip
    data = read(settings, "questions.jsonl")
    return trained(Drawing(**loaded(settings), reward_funcs=odd, args=arguments, train_dataset=data), settings)


if __name__ == "__main__":
    result = globals()[sys.argv[1]](json.loads(sys.argv[2]))
    sys.stdout.write("\n" + json.dumps(result) + "\n")
