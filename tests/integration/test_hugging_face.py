"""Hugging Face folders without code: generate, eval, train and convert with the model's own tokenizer."""

import json
import pathlib

import jax
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.cli.main import main
from kanawa.contracts import StoredModel
from kanawa_layers.convert.families import model_config
from kanawa_layers.convert.huggingface import HuggingFaceStore
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "packages/layers/tests/fixtures"
TEXT = "The quick brown fox jumps over the lazy dog. Ärger über Öl 🎉\n"


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator([TEXT] * 9, trainers.BpeTrainer(special_tokens=["<|end|>"], initial_alphabet=alphabet))
    return made


def write_model(folder: pathlib.Path, vocab_size: int) -> Tokenizer:
    """Writes a random Llama with a tokenizer of its own, as a hub's folder has them."""
    cfg = model_config(json.loads((FIXTURES / "llama" / "config.json").read_text()) | {"vocab_size": vocab_size})
    params = flatten_paths(kn.initialize(cfg.build(), jax.random.key(0)))
    HuggingFaceStore().save(folder, StoredModel(cfg, {path: np.asarray(leaf) for path, leaf in params.items()}))
    made = tokenizer()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return made


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with `model`, `small` (fewer rows than its tokenizer has ids) and `mytext`."""
    folder = tmp_path_factory.mktemp("hugging-face")
    made = write_model(folder / "model", 512)
    assert 256 < made.get_vocab_size() < 512
    write_model(folder / "small", 260)
    (folder / "mytext").mkdir()
    for name in "abc":
        (folder / "mytext" / f"{name}.txt").write_text(TEXT * 20)
    return folder


def test_prompts_are_text_and_padded_ids_are_never_drawn(kanawa, work):
    made = Tokenizer.from_file(str(work / "model" / "tokenizer.json"))
    options = ("--max-tokens", "60", "--temperature", "3", "--prompt", "The quick")
    record = json.loads(kanawa("generate", "model", *options, "--json"))
    assert max(record["token_ids"]) < made.get_vocab_size()
    prompt = made.encode("The quick").ids
    assert record["text"] == made.decode(prompt + record["token_ids"]).removeprefix("The quick")
    assert kanawa("generate", "model", *options) == f"The quick{record['text']}\n"


def test_evaluation_is_in_bytes_of_the_text(kanawa):
    record = json.loads(kanawa("eval", "model", "--data", "mytext/*.txt", "--json"))
    num_bytes = record["loss"] * record["tokens"] / record["nats_per_byte"]
    # All three files: evaluation of files reads all of them.
    assert num_bytes == pytest.approx(3 * len((TEXT * 20).encode()), rel=1e-4)


def test_a_folder_is_fine_tuned_and_comes_back(kanawa, work):
    before = json.loads(kanawa("eval", "model", "--data", "mytext", "--json"))
    schedule = ("--set", "learner.schedule.peak=1e-3", "--set", "learner.schedule.warmup_fraction=0")
    options = ("--data", "mytext", "--run", "tuned", "--steps", "3", "--set", "data.sequence_length=64")
    kanawa("train", "model", *options, *schedule)
    after = json.loads(kanawa("eval", "tuned", "--json"))
    assert after["loss"] < before["loss"]
    greedy = ("--prompt", "über", "--temperature", "0", "--max-tokens", "8", "--json")
    tuned = json.loads(kanawa("generate", "tuned", *greedy))
    assert "tokenizer.json" in kanawa("convert", "to-hf", "tuned", "exported")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (work / "exported" / name).read_bytes() == (work / "model" / name).read_bytes()
    exported = json.loads(kanawa("generate", "exported", *greedy))
    assert exported["token_ids"] == tuned["token_ids"]


def test_an_imported_run_keeps_its_tokenizer(kanawa):
    kanawa("convert", "from-hf", "model", "imported")
    options = ("--prompt", "The", "--temperature", "0", "--max-tokens", "4", "--json")
    assert kanawa("generate", "imported", *options) == kanawa("generate", "model", *options)


def test_a_smaller_vocabulary_is_refused_before_training(work, monkeypatch, capsys):
    monkeypatch.chdir(work)
    size = tokenizer().get_vocab_size()
    assert main(["train", "small", "--data", "mytext", "--run", "refused"]) == 2
    assert f"data has {size} token ids, but model.vocab_size is 260" in capsys.readouterr().err
    assert not (work / "refused" / "checkpoints").exists()
    assert main(["generate", "small", "--prompt", "The"]) == 2
    assert f"has {size} ids, but the model has rows for 260: they don't belong together" in capsys.readouterr().err


def test_our_own_tokenizer_goes_along(kanawa, work):
    data = ("--data", "mytext", "--set", "data.tokenizer.vocab_size=300", "--set", "data.sequence_length=32")
    kanawa("train", "llama-tiny", *data, "--set", "model.vocab_size=512", "--run", "ours", "--steps", "1")
    kanawa("convert", "to-hf", "ours", "ours-exported")
    library = Tokenizer.from_file(str(work / "ours-exported" / "tokenizer.json"))
    greedy = ("--prompt", "The fox", "--temperature", "0", "--max-tokens", "6", "--json")
    ours, theirs = (json.loads(kanawa("generate", name, *greedy)) for name in ("ours", "ours-exported"))
    assert ours == theirs
    prompt = library.encode("The fox").ids
    assert library.decode(prompt + ours["token_ids"]) == "The fox" + ours["text"]


@pytest.mark.parametrize("verb", [("train", "--run", "never"), ("eval",)])
def test_text_never_goes_through_another_tokenizer(work, verb, monkeypatch, capsys):
    monkeypatch.chdir(work)
    folder = work / "pieces"
    if not folder.exists():
        write_model(folder, 512)
        (folder / "tokenizer.json").rename(folder / "tekken.json")
    assert main([verb[0], "pieces", "--data", "mytext", *verb[1:]]) == 2
    error = capsys.readouterr().err
    assert "pieces has tekken.json, a tekken vocabulary, and no tokenizer.json" in error
    assert "save_pretrained" in error
    assert not (work / "never").exists()
    assert main(["generate", "pieces", "--prompt", "a"]) == 2
    assert "a tekken vocabulary" in capsys.readouterr().err
    assert main(["generate", "pieces", "--prompt-ids", "1,2", "--max-tokens", "2"]) == 0


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("bert", "bert: EncoderLM continues no prompt; models that do are CausalLMs"),
        ("t5", "t5: EncoderDecoderLM continues no prompt"),
        ("vit", "vit: ImageClassifier continues no prompt"),
    ],
)
def test_what_continues_no_prompt_says_so(family, message, capsys):
    assert main(["generate", str(FIXTURES / family), "--prompt-ids", "1,2"]) == 2
    assert message in capsys.readouterr().err
