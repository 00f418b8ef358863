"""The other library's side of the comparisons with TRL, run with the Python of an environment that has it.

    python trl_side.py KIND SETTINGS

KIND is a function of this file, SETTINGS its argument as JSON; it prints one line of JSON. `folder` writes a random
model with a tokenizer and a chat template, and data; the others train that folder, and print each step's loss, seconds
and tokens.
"""

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import load_dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "ships", "sail")
#: It marks what the assistant says, for either library.
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def sentence(rng: random.Random, longest: int) -> str:
    """Returns random words, mostly few."""
    count = min(longest, 1 + int(rng.paretovariate(1.2)))
    return " ".join(rng.choice(WORDS) for _ in range(count))


def folder(settings: dict[str, Any]) -> dict[str, Any]:
    """Writes FOLDER/model, and FOLDER/chat.jsonl of `rows` conversations; returns versions and the model's size."""
    place, rng = Path(settings["folder"]), random.Random(0)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>", "<pad>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(WORDS, trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<pad>", chat_template=TEMPLATE
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=settings["vocab"],
        hidden_size=settings["width"],
        intermediate_size=3 * settings["width"],
        num_hidden_layers=settings["layers"],
        num_attention_heads=settings["width"] // 32,
        num_key_value_heads=settings["width"] // 32,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(place / "model")
    tokenizer.save_pretrained(place / "model")
    with (place / "chat.jsonl").open("w") as file:
        for _ in range(settings["rows"]):
            contents = [sentence(rng, settings["longest"]) for _ in range(2 * rng.randint(1, 2))]
            turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]
            file.write(json.dumps({"messages": turns}) + "\n")
    versions = {module.__name__: module.__version__ for module in (torch, transformers, trl)}
    return {"versions": versions, "parameters": sum(p.numel() for p in model.parameters())}


class Recorded:
    """Mixed into a trainer: rows in the file's order, each step's loss in full, seconds and tokens."""

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset if dataset is None else dataset)

    def compute_loss(self, model: Any, inputs: Any, **rest: Any) -> Any:
        """Returns the loss, recorded with the batch's tokens."""
        mask = inputs.get("attention_mask")
        self.tokens.append(int(mask.sum()) if mask is not None else inputs["input_ids"].numel())
        made = super().compute_loss(model, inputs, **rest)
        self.losses.append(float((made[0] if isinstance(made, tuple) else made).detach()))
        return made

    def training_step(self, *arguments: Any, **rest: Any) -> Any:
        """Takes a step whose beginning is recorded."""
        now = time.perf_counter()
        self.starts.append(now)
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
    }


def trained(trainer: Any) -> dict[str, Any]:
    """Trains; returns losses, seconds and tokens of each step, and the trainer's version."""
    trainer.losses, trainer.tokens, trainer.starts = [], [], []
    trainer.train()
    ends = [*trainer.starts[1:], time.perf_counter()]
    seconds = [end - start for start, end in zip(trainer.starts, ends, strict=True)]
    return {"losses": trainer.losses, "seconds": seconds, "tokens": trainer.tokens}


def sft(settings: dict[str, Any]) -> dict[str, Any]:
    """Supervised fine-tuning on the assistant's tokens, padded to each batch's longest row."""
    place = Path(settings["folder"])

    class Trainer(Recorded, trl.SFTTrainer):
        pass

    arguments = trl.SFTConfig(**common(settings), max_length=None, packing=False, assistant_only_loss=True)
    data = load_dataset("json", data_files=str(place / "chat.jsonl"), split="train", cache_dir=str(place / "cache"))
    model = transformers.AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "model")
    return trained(Trainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer))


if __name__ == "__main__":
    result = globals()[sys.argv[1]](json.loads(sys.argv[2]))
    sys.stdout.write("\n" + json.dumps(result) + "\n")
