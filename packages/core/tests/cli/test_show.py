"""`kanawa show` on a small experiment of a fake distribution."""

import json

import pytest
from kanawa.cli.main import main

TINY = """
import kanawa as kn

class Optimizer(kn.Configurable):
    class Config(kn.Configurable.Config):
        rate: float = 0.1

class Work(kn.Configurable):
    class Config(kn.Configurable.Config):
        steps: int = 10
        optimizer: Optimizer.Config = Optimizer.Config()

def tiny():
    return Work.Config().set(steps=20)
"""


@pytest.fixture(autouse=True)
def experiment(fake_distribution):
    entry_points = {"kanawa.experiments": ["tiny = fake_tiny:tiny"]}
    fake_distribution("fake-tiny", entry_points, {"fake_tiny": TINY})


def shown(capsys, *arguments):
    assert main(["show", "tiny", *arguments]) == 0
    return capsys.readouterr().out


def test_text_is_the_default(capsys):
    lines = shown(capsys).splitlines()
    assert "steps: 20" in lines
    assert "optimizer.rate: 0.1" in lines
    assert shown(capsys, "--text").splitlines() == lines


def test_the_heading_says_what_the_experiment_was_changed_by(capsys):
    assert "# changed by steps=30" in shown(capsys, "--set", "steps=30").splitlines()
    assert "# changed" not in shown(capsys)


def test_json_is_the_config_tree_with_set_applied(capsys):
    tree = json.loads(shown(capsys, "--json", "--set", "optimizer.rate=0.5"))
    assert (tree["steps"], tree["optimizer"]["rate"]) == (20, 0.5)


def test_why_ends_with_who_won(capsys):
    arguments = ("--set", "steps=30", "--why", "steps")
    rows = json.loads(shown(capsys, *arguments, "--json"))
    assert [row.keys() >= {"path", "value", "set_by", "where"} for row in rows] == [True] * 3
    assert [row["value"] for row in rows] == ["10", "20", "30"]
    assert rows[1]["set_by"] == "experiment tiny"
    assert "fake_tiny.py:" in rows[1]["where"]
    assert rows[2]["set_by"] == "command line --set"
    assert shown(capsys, *arguments).startswith("steps = 30\n")


def test_diff_from_an_experiment_and_from_a_run(capsys, tmp_path):
    changed = ("--set", "steps=30")
    expected = [{"path": "steps", "old": 20, "new": 30}]
    assert json.loads(shown(capsys, *changed, "--diff", "tiny", "--json")) == expected
    (tmp_path / "config.json").write_text(shown(capsys, "--json"))
    for other in (tmp_path, tmp_path / "config.json"):
        assert json.loads(shown(capsys, *changed, "--diff", str(other), "--json")) == expected
    assert shown(capsys, *changed, "--diff", "tiny") == "steps: 20 -> 30\n"
    assert shown(capsys, "--diff", "tiny") == "no differences\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--diff", "runs/nowhere"], "--diff runs/nowhere: no such folder or file"),
        (["--diff", "tny"], "did you mean 'tiny'"),
        (["--set", "stpes=3"], "steps"),
        (["--on", "cpu-0"], "counts start at 1"),
    ],
)
def test_wrong_arguments_are_usage_errors(capsys, arguments, message):
    assert main(["show", "tiny", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_diff_from_a_folder_without_a_config(capsys, tmp_path):
    assert main(["show", "tiny", "--diff", str(tmp_path)]) == 2
    assert "expected a run's config.json" in capsys.readouterr().err
