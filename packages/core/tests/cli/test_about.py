"""What `list` and `show KIND NAME` say of components, and that saying it imports none of them."""

import json
import sys

import pytest
from kanawa.cli.about.counts import Counts, short
from kanawa.cli.about.page import kind_named
from kanawa.cli.about.summary import first_sentence
from kanawa.cli.main import main
from kanawa.errors import UnknownNameError
from kanawa.plugins import host
from kanawa.plugins.sources import source_file

PARTS = '''
"""Parts of all kinds."""
import kanawa as kn
from kanawa.contracts import FeedForward, Norm

class Leaf(kn.Module):
    """One matrix of `width` rows. It is square."""

    class Config(kn.Module.Config):
        width: int = kn.REQUIRED
        depth: int = kn.FROM_PARENT
        bias: bool = False

    def setup(self):
        self.add_param("w", (self.config.width, 10), axes=(None, None))

class Pair(kn.Module):
    """Two leaves, of which one sleeps."""

    class Config(kn.Module.Config):
        left: Leaf.Config = Leaf.Config(width=100, depth=1)
        right: Leaf.Config = Leaf.Config(width=200, depth=1)

    def setup(self):
        self.add_child("left", self.config.left)
        self.add_child("right", self.config.right)

    @kn.nowrap
    def idle_parameters(self):
        return 1500

def pair(scale: float = 1.0) -> Pair.Config:
    """Returns a pair: 3,000 parameters.

    Not more."""
    return Pair.Config()

def broken():
    """Returns nothing good."""
    raise RuntimeError

ALIAS = pair

def _put(node_config, role, value):
    kn.replace(node_config, target=role, edit=lambda node: node.set(hidden=value))
    node_config.execution.set(mesh=None)

class Widen(kn.Modifier):
    """`widen`: makes things wider; nothing else."""

    class Config(kn.Modifier.Config):
        by: int = kn.REQUIRED

    def __call__(self, cfg):
        _put(cfg, (FeedForward, Norm), self.config.by)
        cfg.set(seed=1)
        return cfg
'''


@pytest.fixture
def parts(fake_distribution, tmp_path, monkeypatch):
    monkeypatch.setenv("KANAWA_CACHE", str(tmp_path / "cache"))
    groups = {
        "kanawa.layers": ["leaf = fake_parts:Leaf", "gone = nowhere.at_all:Gone"],
        "kanawa.models": ["pair = fake_parts:pair", "broken = fake_parts:broken", "alias = fake_parts:ALIAS"],
        "kanawa.modifiers": ["widen = fake_parts:Widen"],
    }
    fake_distribution("fake-parts", groups, {"fake_parts": PARTS}, version="2.5")


def ours(records):
    return {record["name"]: record for record in records if record["distribution"] == "fake-parts"}


def written(capsys, *arguments):
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def test_lines_come_from_the_source_and_import_nothing(parts, capsys):
    before = set(sys.modules)
    layers = ours(json.loads(written(capsys, "list", "layers", "--json")))
    assert layers["leaf"]["description"] == "One matrix of `width` rows"
    assert layers["gone"]["description"] == ""
    assert ours(json.loads(written(capsys, "list", "--json")))["widen"]["description"].startswith("Makes things wider")
    assert not {"fake_parts", "jax"} & (set(sys.modules) - before)


def test_models_are_listed_with_their_parameters(parts, capsys):
    models = ours(json.loads(written(capsys, "list", "models", "--json")))
    assert (models["pair"]["parameters"], models["pair"]["active_parameters"]) == (3000, 1500)
    assert models["pair"]["description"] == "A pair: 3,000 parameters"
    assert models["broken"]["parameters"] is None
    assert models["alias"]["description"] == "Parts of all kinds"
    lines = written(capsys, "list", "model").splitlines()
    assert lines[0].split() == ["NAME", "PARAMETERS", "ACTIVE", "FROM", "WHAT"]
    (row,) = [line for line in lines if line.startswith("pair ")]
    assert row.split()[:5] == ["pair", "3K", "1.5K", "fake-parts", "2.5"]


def test_counts_are_remembered_until_a_source_changes(parts, capsys, tmp_path):
    written(capsys, "list", "models")
    (state,) = [state for state in host().components("models") if state.key == "fake-parts:pair"]
    assert Counts().known(state) == (3000, 1500)
    source = tmp_path / "site" / "fake_parts.py"
    source.write_text(source.read_text() + "\n")
    assert Counts().known(state) is None
    (tmp_path / "cache" / "parameter_counts.json").write_text("no json")
    assert Counts().known(state) is None


def test_a_component_is_shown_whole(parts, capsys):
    record = json.loads(written(capsys, "show", "layer", "leaf", "--json"))
    assert record["documentation"] == "One matrix of `width` rows. It is square."
    assert record["fields"] == [
        {"name": "width", "type": "int", "default": None, "required": True},
        {"name": "depth", "type": "int", "default": "from parent", "required": False},
        {"name": "bias", "type": "bool", "default": "False", "required": False},
    ]
    text = written(capsys, "show", "models", "pair")
    assert "3,000 parameters (3K), of which a token meets 1,500 (1.5K)" in text
    assert ["scale", "float", "1.0"] in [line.split() for line in text.splitlines()]
    assert "kanawa train pair" in text


def test_a_modifier_says_how_it_is_used(parts, capsys):
    text = written(capsys, "show", "modifier", "widen")
    assert ["by", "int", "required"] in [line.split() for line in text.splitlines()]
    assert "--modify widen:by=…" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "layer", "lief"), "did you mean 'leaf'"),
        (("show", "lair", "leaf"), "there is no kind 'lair'"),
        (("list", "modifires"), "did you mean 'modifiers'"),
    ],
)
def test_misspelt(parts, capsys, arguments, said):
    assert main([*arguments]) == 2
    assert said in capsys.readouterr().err


def test_kinds_in_the_singular():
    words = {
        "layer": "layers",
        "strategy": "strategies",
        "data": "data",
        "model-store": "model_stores",
    }
    assert {word: kind_named(word) for word in words} == words
    with pytest.raises(UnknownNameError, match="there is no kind"):
        kind_named("thing")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Returns a thing: 3 parts. More.", "A thing: 3 parts"),
        ("`moe`: every part becomes\nanother; or none. Then.\n\nAnd.", "Every part becomes another; or none"),
        ("x / rms(x) * scale, as in 3.5 of it.", "x / rms(x) * scale, as in 3.5 of it"),
        ("Norms outside only (One, 3.2; Two's paper). More.", "Norms outside only (One, 3.2; Two's paper)"),
        ("", ""),
    ],
)
def test_first_sentence(text, line):
    assert first_sentence(text) == line


def test_sources_are_found_without_importing():
    assert source_file("kanawa.cli.about.page").name == "page.py"
    assert source_file("kanawa.cli.about").name == "__init__.py"
    assert source_file("kanawa.nowhere") is None
    assert source_file("nowhere.at.all") is None


@pytest.mark.parametrize(
    ("number", "text"),
    [(999, "999"), (1_967_808, "1.97M"), (999_885_952, "1B"), (671_026_404_352, "671B"), (3e12, "3T")],
)
def test_short(number, text):
    assert short(number) == text
