"""What an EXPERIMENT argument may be, and what is said where it is none."""

import kanawa as kn
import pytest
from kanawa.cli.main import main
from kanawa.composition.experiment import compose
from kanawa.composition.naming import base_of, experiment_config, is_folder
from kanawa.composition.target import parse_target
from kanawa.errors import UnknownNameError, UsageError

FAKE = """
import kanawa as kn
from kanawa.contracts import ExperimentTemplate
from kanawa.errors import UsageError

class Model(kn.Configurable):
    class Config(kn.Configurable.Config):
        width: int = 4
        learnable: bool = True

class Work(kn.Configurable):
    class Config(kn.Configurable.Config):
        model: Model.Config = Model.Config()
        data: str = "its own"
        rows: int = 1

def ready() -> Work.Config:
    return Work.Config(rows=2)

def small() -> Model.Config:
    return Model.Config(width=8)

def picture() -> Model.Config:
    return Model.Config(learnable=False)

class Template(ExperimentTemplate):
    def refusal(self, model):
        return "" if model.learnable else "it looks at pictures; write a loop"

    def experiment(self, model, platform=None, devices=1):
        return Work.Config(model=model, rows=4 * devices)

    def from_folder(self, directory, platform=None, devices=1):
        return Work.Config(rows=7) if (directory / "weights").exists() else None

    def with_data(self, experiment, data, source=None):
        if data == "nothing":
            raise UsageError("no such data")
        return experiment.clone().set(data=f"{data} read by {source.name if source else 'anyone'}")
"""


@pytest.fixture
def installed(fake_distribution):
    groups = {
        "kanawa.experiments": ["ready = fake_names:ready", "both = fake_names:ready"],
        "kanawa.models": ["small = fake_names:small", "both = fake_names:small", "picture = fake_names:picture"],
        "kanawa.templates": ["only = fake_names:Template"],
    }
    fake_distribution("fake-names", groups, {"fake_names": FAKE})


def test_a_model_is_an_experiment(installed):
    assert (compose("small").config.rows, compose("small").config.model.width) == (4, 8)
    assert compose("small", "cpu-8").config.rows == 32
    history = compose("small").config.origin_history("rows")
    assert history[-1].detail == "small, with default data and learner"


def test_an_experiment_wins_over_a_model_of_its_name(installed):
    assert compose("both").config.rows == 2


def test_a_folder_is_an_experiment(installed, tmp_path, monkeypatch):
    folder = tmp_path / "ready"
    folder.mkdir()
    (folder / "weights").touch()
    monkeypatch.chdir(tmp_path)
    derived = compose(str(folder))
    assert (derived.config.rows, derived.source, derived.name) == (7, folder, "ready")
    assert compose("./ready").config.rows == 7
    assert compose("ready").config.rows == 2, "a catalogued name wins; ./ready is the folder"
    assert [is_folder(text) for text in ("ready", "./ready", "runs/a", "~/a", "fake:ready")] == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_other_data(installed, tmp_path):
    assert compose("ready", data="texts").config.data == "texts read by anyone"
    assert compose("small", data="texts").data == "texts"
    (tmp_path / "weights").touch()
    assert compose(str(tmp_path), data="texts").config.data == f"texts read by {tmp_path.name}"
    assert compose("ready", data="texts").config.origin_history("data")[-1].detail == "--data texts"
    with pytest.raises(UsageError, match="no such data"):
        compose("ready", data="nothing")


def test_set_takes_a_model_by_name(installed):
    assert compose("ready", overrides=["model=small"]).config.model.width == 8
    assert compose("ready", overrides=["model=both"]).config.model.width == 8, "the field's type decides the kind"
    with pytest.raises(UsageError, match="expected Model"):
        compose("ready", overrides=["model=only"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("smal", "no experiment, model or folder is called 'smal'; did you mean 'small'"),
        ("only", "called 'only'; it is one of the templates: kanawa show templates only"),
        (
            "runs/nowhere",
            "there is no folder runs/nowhere; expected a run, a Hugging Face folder, or a catalogued name",
        ),
    ],
)
def test_unknown_names(installed, name, said):
    with pytest.raises(UnknownNameError) as error:
        base_of(name)
    assert said in str(error.value)


def test_a_folder_without_a_model(installed, tmp_path):
    with pytest.raises(UsageError, match="holds no model of a known kind"):
        base_of(str(tmp_path))


def test_a_model_that_no_template_takes(installed, capsys):
    assert main(["show", "picture", "--data", "x"]) == 2
    said = capsys.readouterr().err
    assert "model 'picture' can't be trained as it is" in said
    assert "only: it looks at pictures; write a loop" in said


def test_without_a_template_the_package_to_install_is_named(fake_distribution, monkeypatch):
    monkeypatch.setenv("KANAWA_SKIP_PLUGINS", "kanawa-runtime")
    fake_distribution("fake-names", {"kanawa.models": ["small = fake_names:small"]}, {"fake_names": FAKE})
    with pytest.raises(UsageError, match="nothing installed supplies data and a learner"):
        base_of("small")


def test_an_experiment_comes_from_a_models_config(installed):
    model = kn.component("models", "small")()
    cfg = experiment_config(model, parse_target("cpu-8"), data="texts")
    assert (cfg.rows, cfg.data, cfg.model, cfg.is_frozen) == (32, "texts read by anyone", model, False)
    with pytest.raises(UsageError, match="can't be trained as it is"):
        experiment_config(kn.component("models", "picture")())
