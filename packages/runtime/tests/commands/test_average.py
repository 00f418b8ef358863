"""`kanawa average`: the mean of checkpoints is a run; what can't be averaged is told, and nothing is written."""

import jax
import numpy as np
import pytest
from kanawa.cli.main import main
from kanawa.composition.experiment import compose
from kanawa_runtime.runs.open_run import open_run
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import Screen
from tiny_lm import tiny


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = tmp_path_factory.mktemp("average") / "run"
    cfg = tiny()
    cfg.checkpoints.set(every_steps=2, keep_last=9)
    Loop(compose(cfg), run, steps=6, screen=Screen()).execute()
    return run


def test_the_mean_is_a_run_that_opens_and_generates(trained, tmp_path, capsys):
    out = tmp_path / "mean"
    assert main(["average", str(trained), "--steps", "2,6", "--out", str(out)]) == 0
    assert "the mean of steps 2, 6" in capsys.readouterr().out
    parts = [jax.tree.leaves(open_run(trained, step=step).params) for step in (2, 6)]
    mean = open_run(out)
    assert mean.step == 6
    for first, second, averaged in zip(*parts, jax.tree.leaves(mean.params), strict=True):
        expected = (np.asarray(first, np.float64) + np.asarray(second, np.float64)) / 2
        assert np.array_equal(np.asarray(averaged), expected.astype(averaged.dtype))
    assert main(["generate", str(out), "--prompt-ids", "1,2", "--max-tokens", "1", "--json"]) == 0


def test_the_last_ones_beside_the_run(trained, capsys):
    assert main(["average", str(trained), "--last", "3"]) == 0
    assert "the mean of steps 2, 4, 6" in capsys.readouterr().out
    assert main(["average", str(trained), "--last", "3"]) == 2
    assert "run-average already exists; give a new directory with --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "2,5"], "has no checkpoint 5; it has [2, 4, 6]"),
        (["--steps", "2"], "an average takes two checkpoints at least, and 1 was asked for"),
        (["--last", "-1"], "an average takes two checkpoints at least, and 0 was asked for"),
        (["--steps", "two"], "--steps is 'two', expected numbers with commas between them, such as 800,900,1000"),
        (["--steps", "2,4", "--last", "2"], "give --steps or --last, not both"),
    ],
)
def test_what_cannot_be_averaged(trained, tmp_path, words, said, capsys):
    assert main(["average", str(trained), "--out", str(tmp_path / "new"), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
