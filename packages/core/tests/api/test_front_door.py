"""`import kanawa as kn`: experiments as records, configs shown, and functions that other packages have."""

import json
import subprocess
import sys

import kanawa as kn
import pytest
from kanawa.cli.main import main
from kanawa.errors import CompositionError, PluginError, UsageError

FAKE = """
import kanawa as kn
from kanawa.contracts import ExperimentTemplate

class Net(kn.Configurable):
    class Config(kn.Configurable.Config):
        width: int = 4
        learnable: bool = True

class Work(kn.Configurable):
    class Config(kn.Configurable.Config):
        model: Net.Config = Net.Config()
        steps: int = 10
        label: str = ""

class Wider(kn.Modifier):
    class Config(kn.Modifier.Config):
        by: int = 2

    def __call__(self, cfg):
        cfg.model.width *= self.config.by
        return cfg

def work():
    return Work.Config(steps=20)

def still():
    return Net.Config(learnable=False)

class Template(ExperimentTemplate):
    def refusal(self, model):
        return "" if model.learnable else "it doesn't learn"

    def experiment(self, model, platform=None, devices=1):
        return Work.Config(model=model, steps=30)

    def from_folder(self, directory, platform=None, devices=1):
        return None

    def with_data(self, experiment, data, source=None):
        return experiment.clone().set(label=data)

def plan(experiment, targets, **options):
    return [(experiment, target, options) for target in targets]

def train(what, **options):
    return ("trained", what, options)

def open_path(path, **options):
    return ("opened", path, options)
"""
GROUPS = {
    "kanawa.experiments": ["work = fake_front:work"],
    "kanawa.models": ["still = fake_front:still"],
    "kanawa.modifiers": ["wider = fake_front:Wider"],
    "kanawa.templates": ["only = fake_front:Template"],
}
API = {"kanawa.api": ["plan = fake_front:plan", "train = fake_front:train", "open = fake_front:open_path"]}


@pytest.fixture
def fake(fake_distribution, monkeypatch):
    monkeypatch.setenv("KANAWA_SKIP_PLUGINS", "kanawa-runtime,kanawa-parallel")
    fake_distribution("fake-front", GROUPS | API, {"fake_front": FAKE})


@pytest.fixture
def alone(fake_distribution, monkeypatch):
    """Experiments without the packages that plan, train and open."""
    monkeypatch.setattr("kanawa.plugins.manager.PluginHost.installed", lambda self: {"fake-front": "1.0"})
    monkeypatch.setattr("kanawa.plugins.catalog.Catalog.load", _without_api(kn.host().load))
    fake_distribution("fake-front", GROUPS, {"fake_front": FAKE})


def _without_api(_):
    from kanawa.errors import UnknownNameError
    from kanawa.plugins.catalog import Catalog

    real = Catalog.load

    def load(self, kind, name, asker=""):
        if kind == "api":
            raise UnknownNameError(name)
        return real(self, kind, name, asker)

    return load


# --- experiment ---------------------------------------------------------------------------------------------------


def test_an_experiment_is_a_record_of_what_was_asked(fake):
    asked = kn.experiment("work", modify="wider:by=3", set={"steps": 5, "label": "a"})
    assert (asked.name, asked.config.steps, asked.config.model.width) == ("work", 5, 12)
    assert (asked.target, asked.config.is_frozen) == (None, True)
    assert repr(asked) == "kn.experiment('work', modify=['wider:by=3'], set=['steps=5', 'label=a'])"
    assert eval(repr(asked), {"kn": kn}).config == asked.config


def test_arguments_add_to_an_experiment(fake):
    first = kn.experiment("work", modify=["wider"], set={"steps": 5})
    second = kn.experiment(first, on="cpu-8", modify="wider", set={"steps": 6})
    assert kn.experiment(first) is first
    assert (second.config.model.width, second.config.steps) == (16, 6)
    assert second.target.jax_devices == 8
    assert second.for_target("cpu").target.jax_devices == 1
    assert first.config.model.width == 8, "records don't change"


def test_values_of_python_are_set_as_they_are_and_text_is_read(fake):
    net = type(kn.experiment("work").config.model)(width=7)
    assert kn.experiment("work", set={"model": net}).config.model.width == 7
    assert kn.experiment("work", set={"steps": "8"}).config.steps == 8
    assert kn.experiment("work", set="steps=9").config.steps == 9
    with pytest.raises(UsageError, match="steps"):
        kn.experiment("work", set={"steps": 1.5})
    with pytest.raises(CompositionError) as error:
        kn.experiment("work", set={"step": 1, "model.widht": 2})
    assert len(error.value.problems) == 2


def test_a_config_is_an_experiment_and_a_models_gets_data_and_learner(fake):
    cfg = kn.experiment("work").config.clone()
    cfg.steps = 3
    assert kn.experiment(cfg).config.steps == 3
    model = cfg.model.clone(width=9)
    around = kn.experiment(model, data="texts")
    assert (around.config.steps, around.config.model.width, around.config.label) == (30, 9, "texts")
    assert kn.experiment(around, set={"steps": 1}).config.label == "texts"


def test_a_json_file_is_an_experiment(fake, tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(kn.show("work", set={"steps": 4}).as_json()))
    assert (kn.experiment(file).config.steps, kn.experiment(file).name) == (4, "mine")
    (tmp_path / "no.json").write_text("{")
    with pytest.raises(UsageError, match="can't read the config"):
        kn.experiment(tmp_path / "no.json")


# --- show ---------------------------------------------------------------------------------------------------------


def test_show_is_what_the_verb_writes(fake, capsys):
    shown = kn.show("work", modify="wider", set={"steps": "5"})
    arguments = ["show", "work", "--modify", "wider", "--set", "steps=5"]
    assert main([*arguments]) == 0
    written = capsys.readouterr().out
    assert "".join(line for line in written.splitlines(keepends=True) if line[0] != "#") == str(shown) == shown.text
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == shown.as_json()
    assert main([*arguments, "--why", "steps", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [one.as_json() for one in shown.why("steps")]
    assert main([*arguments, "--diff", "work", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [one.to_json() for one in shown.diff("work")]


def test_what_changed_and_who_set_it(fake, tmp_path):
    shown = kn.show("work", modify="wider")
    (change,) = shown.diff("work")
    assert (change.path, change.old, change.new) == ("model.width", 4, 8)
    assert shown.diff(kn.experiment("work", modify="wider")) == shown.diff(shown) == shown.diff(shown.config) == []
    assert [why.set_by for why in shown.why("model.width")][-1] == "modifier wider"
    (tmp_path / "config.json").write_text(json.dumps(kn.show("work", set={"steps": 1}).as_json()))
    assert [one.path for one in kn.show("work").diff(tmp_path)] == ["steps"]


def test_a_model_that_no_template_takes_is_shown_alone(fake):
    shown = kn.show("still")
    assert shown.config.width == 4
    assert "it doesn't learn" in shown.note
    with pytest.raises(UsageError, match="it doesn't learn"):
        kn.experiment("still")


# --- functions of other packages ----------------------------------------------------------------------------------


def test_functions_come_from_the_catalog(fake, tmp_path):
    kind, what, options = kn.train("work", run=tmp_path, steps=3, set={"seed": 1})
    assert (kind, what, options["run"], options["steps"]) == ("trained", "work", tmp_path, 3)
    assert options["set"] == {"seed": 1}
    assert kn.open(tmp_path, step=5)[1:] == (
        tmp_path,
        {"step": 5, "on": None, "modify": (), "set": (), "data": None},
    )
    experiment, target, options = kn.plan("work", on="cpu-8", quick=True)
    assert (experiment.name, target, options["quick"]) == ("work", "cpu-8", True)
    assert [target for _, target, _ in kn.plan("work", on=["cpu", "cpu-8"])] == ["cpu", "cpu-8"]


@pytest.mark.parametrize(
    ("call", "package"),
    [
        (lambda: kn.train("work"), "kn.train is in kanawa-runtime"),
        (lambda: kn.open("runs/a"), "kn.open is in kanawa-runtime"),
        (lambda: kn.plan("work", on="cpu"), "kn.plan is in kanawa-parallel"),
    ],
)
def test_an_absent_package_is_named_with_its_installation(alone, call, package):
    with pytest.raises(UsageError, match=f'{package}, which is not installed: pip install "kanawa'):
        call()


def test_a_broken_function_is_an_error_of_its_plugin(fake_distribution, monkeypatch):
    monkeypatch.setenv("KANAWA_SKIP_PLUGINS", "kanawa-runtime,kanawa-parallel")
    fake_distribution("fake-front", {"kanawa.api": ["train = fake_front:train"]}, {"fake_front": "raise ValueError"})
    with pytest.raises(PluginError, match="fake-front"):
        kn.train("work")


# --- the facade ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "imports",
    ["import kanawa as kn", "import kanawa.kernels.choice as c, kanawa as kn", "from kanawa.kernels import Kernel"],
)
def test_kernels_is_a_package_and_a_function_in_any_order(imports):
    """The import system binds a subpackage over a function of its name, whichever comes last."""
    program = f"""
{imports}
import kanawa as kn, kanawa.kernels as package
from kanawa.kernels import Kernel
assert kn.kernels is package and package.Kernel is Kernel
try:
    kn.kernels("no such experiment")
except kn.KanawaError as error:
    assert "no such experiment" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program], check=True)
