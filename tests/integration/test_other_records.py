"""ViT, T5 and BERT train through the trainer: it asks the record of the data, and assumes no rows of tokens."""

import kanawa as kn
import pytest
from kanawa_layers.recipes.bert import bert
from kanawa_layers.recipes.t5 import t5
from kanawa_layers.recipes.vit import vit
from kanawa_runtime.data.masked import MaskedTokens
from kanawa_runtime.data.random_tokens import RandomTokens
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
