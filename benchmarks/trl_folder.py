"""What the comparisons with TRL train, the same on either side: a random Llama, its tokenizer, conversations and pairs.

NumPy and `tokenizers` write it, without torch: tests train the same folder again and compare with TRL's losses, which
the comparisons write to tests/integration/golden with `--small --write FILE`.
"""

import json
import random
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "ships", "sail")
#: Padding, the end of a text, the beginning of a message.
SPECIAL = ("<pad>", "<|im_end|>", "<|im_start|>")
#: It marks what the assistant says, for either library.
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_model(folder: Path, *, vocab: int, width: int, layers: int, heads: int, kv_heads: int) -> int:
    """Writes a Hugging Face folder, its weights and tokenizer; returns the number of parameters."""
    folder.mkdir()
    hidden, head = 3 * width, width // heads
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab, "hidden_size": width,
        "intermediate_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head, "max_position_embeddings": 1024, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": False, "torch_dtype": "float32", "pad_token_id": 0, "bos_token_id": None,
        "eos_token_id": 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens": (vocab, width), "lm_head": (vocab, width), "model.norm": (width,)}
    block = {
        "self_attn.q_proj": (width, width), "self_attn.k_proj": (kv_heads * head, width),
        "self_attn.v_proj": (kv_heads * head, width), "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (hidden, width), "mlp.up_proj": (hidden, width), "mlp.down_proj": (width, hidden),
        "input_layernorm": (width,), "post_attention_layernorm": (width,),
    }  # fmt: skip
    shapes |= {f"model.layers.{i}.{name}": shape for i in range(layers) for name, shape in block.items()}
    weights = {f"{name}.weight": _weight(name, shape) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(folder)
    return sum(weight.size for weight in weights.values())


def _weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    return (0.02 * np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)).astype(np.float32)


def _write_tokenizer(folder: Path) -> None:
    """Writes a tokenizer of bytes and, letter by letter, of WORDS with a blank before them or without."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens, merges = dict.fromkeys((*SPECIAL, *alphabet)), dict[tuple[str, str], None]()
    for word in (*WORDS, *(f"\u0120{word}" for word in WORDS)):
        for end in range(1, len(word)):
            merges[word[:end], word[end]] = tokens[word[: end + 1]] = None
    vocabulary = {token: number for number, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    made.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "pad_token": SPECIAL[0], "eos_token": SPECIAL[1],
        "chat_template": TEMPLATE,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_chats(file: Path, *, rows: int, longest: int) -> None:
    """Writes conversations of one or two answers, of mostly few words."""
    rng = random.Random(0)

    def sentence() -> str:
        return " ".join(rng.choice(WORDS) for _ in range(min(longest, 1 + int(rng.paretovariate(1.2)))))

    counts = (2 * rng.randint(1, 2) for _ in range(rows))
    chats = ([{"role": ("user", "assistant")[i % 2], "content": sentence()} for i in range(count)] for count in counts)
    _write(file, ({"messages": chat} for chat in chats))


def write_preferences(folder: Path, *, rows: int, longest: int) -> None:
    """Writes dpo.jsonl, pairs of at most so many words, and kto.jsonl, completions that are good or bad."""
    rng = random.Random(7)

    def text(words: int) -> str:
        return " ".join("".join(chr(97 + rng.randrange(26)) for _ in range(1 + rng.randrange(6))) for _ in range(words))

    made = [
        (text(2 + rng.randrange(longest // 2)), *(" " + text(1 + rng.randrange(longest)) for _ in "cr"))
        for _ in range(rows)
    ]
    judged = ({"prompt": p, "completion": (c, r)[i % 2], "label": i % 2 == 0} for i, (p, c, r) in enumerate(made))
    _write(folder / "dpo.jsonl", ({"prompt": p, "chosen": c, "rejected": r} for p, c, r in made))
    _write(folder / "kto.jsonl", judged)


def write_questions(file: Path, *, rows: int) -> None:
    """Writes prompts, of a few words each, as conversations."""
    rng = random.Random(3)
    asked = (" ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 12))) for _ in range(rows))
    _write(file, ({"prompt": [{"role": "user", "content": text}]} for text in asked))


def _write(file: Path, records: Iterable[Any]) -> None:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
