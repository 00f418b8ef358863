"""ViT, T5 and BERT train through the trainer: it asks the record of the data, and assumes no rows of tokens."""

import json

import kanawa as kn
import pytest
from kanawa.cli.main import main
from kanawa_layers.recipes.bert import bert
from kanawa_layers.recipes.t5 import t5
from kanawa_layers.recipes.vit import vit
from kanawa_runtime.data.masked import MaskedTokens
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.span_corruption import SpanCorruption
from kanawa_runtime.train.trainer import Trainer
from other_rows import Copies, Images

STEPS = 12


def experiment(model, data):
    cfg = Trainer.Config(model=model, data=data, batch_size=8, steps=STEPS)
    cfg.learner.schedule.set(peak=3e-3)
    cfg.checkpoints.set(every_steps=6)
    return cfg


EXPERIMENTS = {
    "vit": lambda: experiment(
        vit(num_layers=1, input_dim=16, num_heads=2, image_size=16, patch_size=8, num_classes=3), Images.Config()
    ),
    "t5": lambda: experiment(
        t5(num_layers=1, input_dim=16, num_heads=2, hidden_dim=32, vocab_size=32), Copies.Config(sequence_length=8)
    ),
    "bert": lambda: experiment(
        bert(num_layers=1, input_dim=16, num_heads=2, hidden_dim=32, vocab_size=64, max_length=16),
        MaskedTokens.Config(sequence_length=16, source=RandomTokens.Config(vocab_size=63, num_rows=200)),
    ),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_trains_evaluates_and_resumes(tmp_path, name):
    cfg = EXPERIMENTS[name]()
    run = kn.train(cfg, run=tmp_path / "run", on="cpu", progress=False)
    assert (run.outcome.step, len(run.losses)) == (STEPS, STEPS)
    # Nothing can be learned of random tokens.
    assert name == "bert" or min(run.losses[-3:]) < run.losses[0]
    kn.train(cfg, run=tmp_path / "cut", steps=6, set={"steps": STEPS}, on="cpu", progress=False)
    assert kn.train(cfg, run=tmp_path / "cut", on="cpu", progress=False).losses == run.losses
    if name != "bert":
        assert kn.open(run.directory).evaluate().scores["tokens"] == {"vit": 10, "t5": 80}[name]


def test_an_encoder_decoder_reads_a_corpus_or_pairs_by_commands(tmp_path, capsys):
    (tmp_path / "book.txt").write_text("A cat sat on a mat. " * 400)
    pairs = "".join(json.dumps({"input": f"say {n}", "target": f"{n} {n}"}) + "\n" for n in range(60))
    (tmp_path / "pairs.jsonl").write_text(pairs)
    text = kn.compose("t5-tiny", data=str(tmp_path / "book.txt")).config
    assert isinstance(text.data, SpanCorruption.Config) and isinstance(text.data.source, TextSource.Config)
    assert text.data.build().vocab_size <= text.model.vocab_size
    run = tmp_path / "run"
    sizes = ("data.sequence_length=16", "data.target_length=8", "batch_size=8", "model.input_dim=32")
    sets = [part for each in sizes for part in ("--set", each)]
    asked = ["train", "t5-tiny", "--data", str(tmp_path / "pairs.jsonl"), "--run", str(run), "--steps", "4"]
    assert main([*asked, *sets]) == 0
    # Span corruption and pairs are the same record: a model of one learns from the other.
    capsys.readouterr()
    assert main(["eval", str(run), "--data", str(tmp_path / "pairs.jsonl"), "--json"]) == 0
    # Both texts of a pair end with the end token, and begin with the begin token.
    assert json.loads(capsys.readouterr().out)["tokens"] == sum(min(2 * len(str(n)) + 3, 8) for n in range(60))
    assert main(["data", "inspect", str(run), "--rows", "1", "--sample", "4"]) == 0
    assert "say " in capsys.readouterr().out
