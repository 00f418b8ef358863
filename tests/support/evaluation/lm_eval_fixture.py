"""A small random model in a Hugging Face folder, tasks over it, and what lm-eval's `hf` backend makes of them.

As a script, in an environment with torch, transformers and lm-eval, it writes `lm_eval_samples.json` beside itself:

    python tests/support/evaluation/lm_eval_fixture.py

The model and the tasks follow from numbers alone, so that a test makes the same ones again.
"""

import json
import pathlib
import random
import sys

import numpy as np

FOLDER = pathlib.Path(__file__).parent
SAMPLES = FOLDER / "lm_eval_samples.json"
TASKS = ("choices", "shots", "endings", "texts", "answers", "blanks")
#: Shorter than some texts and contexts, so that windows and truncation are part of it.
MAX_LENGTH = 96
WORDS = [
    "red",
    "blue",
    "river",
    "stone",
    "walks",
    "sleeps",
    "under",
    "over",
    "the",
    "a",
    "seven",
    "two",
    "bright",
    "old",
]


def write_model(
    folder: pathlib.Path, *, dim=48, layers=2, heads=4, hidden=96, max_length=MAX_LENGTH, scale=0.35, vocab=0
) -> None:
    """Writes config.json, model.safetensors in fp32, and a byte-level tokenizer.json that begins texts with <s>."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_level_tokenizer()
    # Models often have more rows than their tokenizer has ids.
    vocab = vocab or len(tokenizer["model"]["vocab"])
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": dim,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "max_position_embeddings": max_length,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "hidden_act": "silu",
        "attention_bias": False,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, indent=1))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    _write_safetensors(folder / "model.safetensors", _weights(config, scale))


def _weights(config: dict, scale: float) -> dict[str, np.ndarray]:
    chance = np.random.RandomState(0)
    dim, hidden, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = dim * config["num_key_value_heads"] // config["num_attention_heads"]

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (chance.standard_normal((rows, columns)) * scale).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(vocab, dim)}
    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.{index}"
        shapes = {"q": (dim, dim), "k": (kv, dim), "v": (kv, dim), "o": (dim, dim)}
        weights |= {f"{at}.self_attn.{name}_proj.weight": matrix(*shape) for name, shape in shapes.items()}
        shapes = {"gate": (hidden, dim), "up": (hidden, dim), "down": (dim, hidden)}
        weights |= {f"{at}.mlp.{name}_proj.weight": matrix(*shape) for name, shape in shapes.items()}
        for norm in ("input", "post_attention"):
            weights[f"{at}.{norm}_layernorm.weight"] = np.ones(dim, np.float32)
    weights["model.norm.weight"] = np.ones(dim, np.float32)
    weights["lm_head.weight"] = matrix(vocab, dim)
    return weights


def _write_safetensors(path: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
    header, start = {"__metadata__": {"format": "pt"}}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [start, start + array.nbytes]}
        start += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in tensors.values()))


def byte_level_tokenizer() -> dict:
    """Returns a tokenizer.json: all bytes, <s>, </s>, and merges that write the words of the tasks with their space."""
    bytes_shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in bytes_shown]
    shown = {byte: chr(byte) for byte in bytes_shown} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    vocab = {shown[byte]: byte for byte in range(256)} | {"<s>": 256, "</s>": 257}
    merges = []
    for word in WORDS:
        pieces = shown[32] + word
        for end in range(2, len(pieces) + 1):
            merge = (pieces[: end - 1], pieces[end - 1])
            if pieces[:end] not in vocab:
                vocab[pieces[:end]] = len(vocab)
                merges.append(list(merge))
    begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 256, "content": "<s>", **special}, {"id": 257, "content": "</s>", **special}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, text],
            "pair": [begin, text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }


def _text(chance: random.Random, count: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(count))


def write_tasks(folder: pathlib.Path, *, documents: int = 12, words: tuple[int, int] = (3, 14)) -> list[pathlib.Path]:
    """Writes the data and the files of all tasks; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(7)
    rows = [
        {
            "question": _text(chance, chance.randrange(*words)),
            "choices": [_text(chance, chance.randrange(1, 4)) for _ in range(4)],
            "answer": chance.randrange(4),
            "ending": _text(chance, 2),
            "text": _text(chance, chance.randrange(4, 60)),
            "first": _text(chance, 2),
            "second": _text(chance, 3),
        }
        for _ in range(documents)
    ]
    # One context that the model can't take whole.
    rows[1]["question"] = _text(chance, MAX_LENGTH + 20)
    file, shots = folder / "rows.jsonl", folder / "shots.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shots.write_text("".join(json.dumps({**row, "question": row["first"]}) + "\n" for row in rows))
    data = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {file}, train: {shots}}}}}\ntest_split: test\n"
    choices = (
        'output_type: multiple_choice\ndoc_to_text: "{{question}}"\ndoc_to_choice: choices\ndoc_to_target: answer\n'
    )
    metrics = "metric_list: [{metric: acc}, {metric: acc_norm}]\n"
    texts = {
        "choices": f'{choices}description: "Say what follows. "\ntarget_delimiter: " "\n{metrics}',
        "shots": f"{choices}num_fewshot: 2\nfewshot_split: train\n{metrics}",
        "endings": 'output_type: loglikelihood\ndoc_to_text: "{{question}} "\ndoc_to_target: "{{ending}}"\n',
        "texts": 'output_type: loglikelihood_rolling\ndoc_to_text: ""\ndoc_to_target: "{{text}}"\n',
        "answers": (
            'output_type: generate_until\ndoc_to_text: "{{first}} and"\ndoc_to_target: "{{second}}"\n'
            'generation_kwargs: {until: ["e", "\\n"], max_gen_toks: 12, do_sample: false}\n'
            "metric_list: [{metric: exact_match, ignore_case: true, ignore_punctuation: true}]\n"
            "filter_list:\n"
            '  - {name: word, filter: [{function: regex, regex_pattern: "([a-z]+)"}, {function: take_first}]}\n'
            "  - {name: whole, filter: [{function: take_first}]}\n"
        ),
        "blanks": (
            'output_type: multiple_choice\ndoc_to_text: "{{answer % 2}}"\ndoc_to_target: ending\n'
            "doc_to_choice: '{{[first ~ \" \" ~ question[:20], second]}}'\n" + metrics
        ),
    }
    files = []
    for name in TASKS:
        task = folder / f"{name}.yaml"
        task.write_text(f"task: {name}\n{data}{texts[name]}")
        files.append(task)
    return files


def main() -> None:
    """Evaluates with lm-eval, and writes each document's answers and the metrics."""
    import tempfile
    from importlib.metadata import version

    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_model(folder / "model")
        write_tasks(folder / "tasks")
        model = HFLM(pretrained=str(folder / "model"), device="cpu", dtype="float32", batch_size=8)
        manager = TaskManager(include_path=str(folder / "tasks"), include_defaults=False)
        found = lm_eval.simple_evaluate(model, tasks=list(TASKS), task_manager=manager, log_samples=True, device="cpu")
    samples = {}
    for task, each in found["samples"].items():
        by_document: dict[int, list] = {}
        for sample in each:
            by_document.setdefault(sample["doc_id"], sample["resps"])
        samples[task] = [_plain(by_document[index]) for index in sorted(by_document)]
    results = {
        task: {key: value for key, value in each.items() if isinstance(value, float)}
        for task, each in found["results"].items()
    }
    names = ("lm_eval", "transformers", "torch", "tokenizers")
    record = {"versions": {name: version(name) for name in names}, "samples": samples, "results": results}
    SAMPLES.write_text(json.dumps(record) + "\n")


def _plain(responses: list) -> list:
    """Returns a document's answers by request: [log-probability, is greedy], a log-probability, or a text."""
    plain = []
    for response in responses:
        first = response[0]
        plain.append(list(first) if isinstance(first, tuple) else first)
    return plain


if __name__ == "__main__":
    sys.exit(main())
