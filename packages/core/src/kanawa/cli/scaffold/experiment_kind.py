"""An experiment: a function from nothing to the config of a run."""

from kanawa.cli.scaffold.kinds import Kind

_EXPERIMENT = '''"""`$distribution`: a small Llama on Python's own source; every value may be changed."""

import kanawa as kn


def $package() -> kn.Config:
    """Returns 200 steps of 8 rows of 128 tokens, by AdamW with a warm-up."""
    # A catalogued model with default data and learner; `data="mytext/**/*.txt"` would make it your own text.
    cfg = kn.experiment("llama-tiny")
    cfg.set(steps=200, batch_size=8, sample_prompt="def ")
    cfg.data.set(sequence_length=128)
    cfg.data.tokenizer.set(vocab_size=1024)
    cfg.learner.schedule.set(peak=3e-3)
    cfg.evaluation.set(every_steps=50)
    return cfg
'''

_TESTS = '''"""The package passes the kit that Kanawa's own packages pass, and its experiment takes two steps."""

from kanawa.testing.experiment import ExperimentConformance
from kanawa.testing.plugin import PluginConformance
from kanawa_runtime.training import train

SMALL = ("batch_size=8", "data.sequence_length=16", "data.tokenizer.vocab_size=300", "evaluation.final_batches=1")


class TestPlugin(PluginConformance):
    distribution = "$distribution"


class Test$class_name(ExperimentConformance):
    name = "$distribution"

    def test_it_trains(self, tmp_path):
        run = train(self.name, tmp_path / "run", overrides=SMALL, steps=2)
        assert run.outcome.kind == "done"
        assert len(run.losses) == 2
'''

KIND = Kind(
    sources={"experiment.py": _EXPERIMENT},
    entry_points={"experiments": {"$distribution": "experiment:$package"}},
    conformance=_TESTS,
    usage="kanawa show $distribution\nkanawa train $distribution --run runs/first",
    extras="[train]",
    strict=False,
)
