"""Training from Python: what comes back, resuming, starting from other weights, and text after a prompt."""

import kanawa as kn
import pytest
from kanawa.errors import UsageError
from kanawa_runtime.training import train
from tiny_lm import TinyLM, tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("python")
    (folder / "text").mkdir()
    for number in range(6):
        (folder / "text" / f"{number}.txt").write_text(f"What number {number} says of words.\n" * 20)
    cfg = tiny()
    cfg.set(model=TinyLM.Config(vocab_size=300), steps=3, batch_size=8)
    return train(cfg, folder / "run", target="cpu", data=str(folder / "text"))


def test_what_comes_back(run):
    assert (run.outcome.kind, run.outcome.step, len(run.losses)) == ("done", 3, 3)
    assert run.losses[0] > 4.0
    assert run.evaluation["nats_per_byte"] > 0
    assert run.open().step == 3
    assert run.events[0]["event"] == "run_started"


def test_it_says_something_after_a_prompt(run):
    assert isinstance(run.generate("What ", max_tokens=4), str)
    assert run.generate("What ", max_tokens=4, temperature=0.0) == run.generate("What ", max_tokens=4, temperature=0.0)


def test_it_goes_on_in_its_own_directory_and_starts_others(run, tmp_path):
    further = train(str(run.directory), run.directory, target="cpu", steps=4)
    assert further.losses[:3] == run.losses[:3]
    assert further.outcome.start_step == 3
    other = train(str(run.directory), tmp_path / "other", target="cpu", steps=1)
    noted = [event["path"] for event in other.events if event["event"] == "initialised_from"]
    assert noted == [str(run.directory)]


def test_a_composition_takes_no_further_arguments(tmp_path):
    with pytest.raises(UsageError, match="a composition is complete"):
        train(kn.compose(tiny()), tmp_path / "run", data="quickstart")


def test_a_run_without_text_has_nothing_to_say(tmp_path):
    with pytest.raises(UsageError, match="tokenizer"):
        train(tiny(), tmp_path / "run", target="cpu", steps=1).generate("a")
