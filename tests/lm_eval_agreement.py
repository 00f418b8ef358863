"""Scores a task of random words with `lm-eval` through a server, and in this process: both have to say the same.

Run by `nox -s lm_eval`, in an environment that has `lm-eval[api]` beside Kanawa; or with the path of another
environment's `lm_eval` as argument.
"""

import contextlib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import jax
import kanawa as kn
import numpy as np
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import Sequences, StoredModel
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.data.tokenizers.bpe import BytePairTokenizer
from kanawa_runtime.data.tokenizers.load import tokenizer_of
from kanawa_runtime.runs.model_store import RunStore
from kanawa_runtime.runs.open_run import open_run
from kanawa_runtime.serve.generate import Generator

QUESTIONS = 24
TASK = """task: words
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list: [{{metric: acc}}]
"""
TOLERANCE = 1e-3


def make_run(folder: pathlib.Path) -> None:
    """Writes a small run that has learned nothing, and has a vocabulary of Python's own."""
    texts = [path.read_bytes() for path in sorted(pathlib.Path(json.__file__).parent.glob("*.py"))]
    tokenizer = BytePairTokenizer.Config(vocab_size=384, min_piece_count=2).build().fit(texts)
    config = llama(num_layers=2, input_dim=32, num_heads=4, num_kv_heads=2, hidden_dim=48, vocab_size=384, tied=True)
    model = config.build()
    params = flatten_paths(jax.jit(lambda key: kn.initialize(model, key))(jax.random.key(0)))
    # Larger weights than it starts with, or every answer would be as likely as any other.
    params = {path: np.asarray(array) * 3 for path, array in params.items()}
    RunStore().save(folder, StoredModel(config, params, {}, tokenizer.folder_files(), {}))


def make_task(folder: pathlib.Path) -> list[dict]:
    """Writes a task of multiple choices; returns its questions."""
    chance = random.Random(0)
    words = ["self", "return", "import", "value", "class", "name", "def", "index", "of", "and", "the", "in"]

    def text(count: int) -> str:
        return " ".join(chance.choice(words) for _ in range(count))

    def question() -> dict:
        choices = [text(count) for count in (1, 2, 3)]
        return {"question": text(chance.randrange(3, 20)), "choices": choices, "answer": chance.randrange(3)}

    questions = [question() for _ in range(QUESTIONS)]
    file = folder / "words.jsonl"
    file.write_text("".join(json.dumps(question) + "\n" for question in questions))
    (folder / "words.yaml").write_text(TASK.format(file=file))
    return questions


def own_scores(run: pathlib.Path, questions: list[dict]) -> list[list[float]]:
    """Returns the log-probability of each choice after its question, token by token with a cache."""
    opened = open_run(run)
    tokenizer, model = tokenizer_of(opened), opened.trainer.model
    generator = Generator(model, opened.params)
    step = jax.jit(kn.functional(model, "decode"))

    def score(question: str, choice: str) -> float:
        before = len(tokenizer.encode(question))
        ids = tokenizer.encode(f"{question} {choice}").tolist()
        caches, total = generator.new_caches(1, 128), 0.0
        for place in range(len(ids) - 1):
            sequences = Sequences(lengths=np.asarray(place, np.int32))
            (logits, caches), _ = step(generator.params, {}, np.asarray([[ids[place]]], np.int32), sequences, caches)
            if place + 1 >= before:
                total += float(jax.nn.log_softmax(logits[0, 0])[ids[place + 1]])
        return total

    return [[score(q["question"], choice) for choice in q["choices"]] for q in questions]


@contextlib.contextmanager
def served(run: pathlib.Path):
    """Serves a run; yields its address."""
    sizes = ["max_length=128", "max_sequences=8", "prefill_tokens=64", "prefill_sizes=[64]", "batch_sizes=[8]"]
    options = [word for size in sizes for word in ("--set", f"engine.{size}")]
    command = [str(pathlib.Path(sys.executable).with_name("kanawa")), "serve", str(run), "--port=0", "--json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield json.loads(process.stdout.readline())["url"]
        process.terminate()


def main() -> int:
    """Returns 0 where they agree."""
    program = sys.argv[1] if len(sys.argv) > 1 else str(pathlib.Path(sys.executable).with_name("lm_eval"))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_run(folder / "small")
        questions = make_task(folder)
        with served(folder / "small") as url:
            arguments = f"model=small,base_url={url}/v1/completions,num_concurrent=4,max_retries=1,max_length=128"
            command = [program, "--model", "local-completions", "--model_args", arguments, "--tasks", "words"]
            command += ["--include_path", name, "--output_path", f"{name}/out", "--log_samples", "--batch_size", "2"]
            subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": f"{name}/hf"})
        (samples,) = (folder / "out").rglob("samples_words_*.jsonl")
        (results,) = (folder / "out").rglob("results_*.json")
        theirs = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda sample: sample["doc_id"])
        accuracy = json.loads(results.read_text())["results"]["words"]["acc,none"]
        ours = own_scores(folder / "small", questions)
    heard = [[float(response[0]) for response in sample["filtered_resps"]] for sample in theirs]
    apart = max(abs(a - b) for one, other in zip(ours, heard, strict=True) for a, b in zip(one, other, strict=True))
    right = [int(np.argmax(scores) == q["answer"]) for scores, q in zip(ours, questions, strict=True)]
    record = {"questions": QUESTIONS, "accuracy": accuracy, "own_accuracy": sum(right) / QUESTIONS, "most_apart": apart}
    sys.stdout.write(json.dumps(record) + "\n")
    return 0 if apart < TOLERANCE and accuracy == record["own_accuracy"] else 1


if __name__ == "__main__":
    sys.exit(main())
