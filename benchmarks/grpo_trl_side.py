"""TRL's side of `grpo_beside_trl.py`, run with the Python of an environment that has it.

    python grpo_trl_side.py FOLDER SETTINGS

Trains FOLDER/model with TRL's GRPOTrainer on the completions of FOLDER/completions.npz in place of its own, and prints
each step's loss and seconds as JSON. SETTINGS are JSON too; with `make` it only writes the model.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models


def make(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Writes a random Llama with a tokenizer that is never asked."""
    torch.manual_seed(0)
    heads = settings["width"] // 32
    config = transformers.LlamaConfig(
        vocab_size=settings["vocab"], hidden_size=settings["width"], intermediate_size=3 * settings["width"],
        num_hidden_layers=settings["layers"], num_attention_heads=heads, num_key_value_heads=heads,
        max_position_embeddings=1024, tie_word_embeddings=False, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder / "model")
    words = {"<pad>": 0, "<end>": 1} | {f"w{i}": i for i in range(2, settings["vocab"])}
    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))  # noqa: S106 - no password
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="<pad>")  # noqa: S106
    tokenizer.save_pretrained(folder / "model")
    versions = {module.__name__: module.__version__ for module in (torch, transformers, trl)}
    return {"versions": versions, "parameters": sum(p.numel() for p in model.parameters())}


class Trainer(trl.GRPOTrainer):
    """Takes a step's completions from the file; the losses are TRL's own."""

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        del generation_batch
        step = len(self.losses)
        made = {name: torch.from_numpy(array[step]) for name, array in self.completions.items()}
        made["num_items_in_batch"] = made["completion_mask"].sum()
        return made

    def compute_loss(self, model: Any, inputs: Any, **rest: Any) -> Any:
        """Returns the loss, recorded in full."""
        loss = super().compute_loss(model, inputs, **rest)
        self.losses.append(float(loss.detach()))
        return loss

    def training_step(self, *arguments: Any, **rest: Any) -> Any:
        """Takes a step whose beginning is recorded."""
        self.starts.append(time.perf_counter())
        return super().training_step(*arguments, **rest)


def train(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns losses and seconds of each step."""
    # A step's time ends where the next begins, and so includes the update.
    arguments = trl.GRPOConfig(
        output_dir=str(folder / "theirs"), per_device_train_batch_size=settings["rows"], max_steps=settings["steps"],
        num_generations=settings["group"], max_completion_length=settings["completion"], beta=0.0,
        loss_type=settings["loss_type"], epsilon=settings["low"], epsilon_high=settings["high"],
        importance_sampling_level=settings["level"], temperature=1.0, learning_rate=settings["rate"],
        lr_scheduler_type="constant", weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8,
        max_grad_norm=0.0, warmup_steps=0, gradient_checkpointing=False, bf16=False, use_cpu=True, report_to=[],
        save_strategy="no", logging_steps=1_000_000, disable_tqdm=True, dataloader_pin_memory=False, seed=0,
    )  # fmt: skip
    trainer = Trainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["w2"] * settings["rows"] * settings["steps"]}),
        processing_class=transformers.AutoTokenizer.from_pretrained(folder / "model"),
    )
    trainer.losses, trainer.starts = [], []
    with np.load(folder / "completions.npz") as arrays:
        trainer.completions = dict(arrays)
    trainer.train()
    ends = [*trainer.starts[1:], time.perf_counter()]
    return {"losses": trainer.losses, "seconds": [b - a for a, b in zip(trainer.starts, ends, strict=True)]}


if __name__ == "__main__":
    asked = json.loads(sys.argv[2])
    result = (make if asked.get("make") else train)(Path(sys.argv[1]), asked)
    sys.stdout.write("\n" + json.dumps(result) + "\n")
