"""Patterns of `emit`: what they match, and what the error says of one that matches nothing."""

import jax
import jax.numpy as jnp
import kanawa as kn
import pytest
from kanawa.errors import ContextError
from kanawa.module import EmissionError
from kanawa.module.emission import matches


class Leaf(kn.Module):
    class Config(kn.Module.Config):
        silent: bool = False

    def forward(self, x: jax.Array) -> jax.Array:
        if not self.config.silent:
            self.emit("output", x + 1.0)
        return x


class Tree(kn.Module):
    class Config(kn.Module.Config):
        branches: tuple[Leaf.Config, ...] = (Leaf.Config(), Leaf.Config())
        layer: Leaf.Config = Leaf.Config()

    def setup(self) -> None:
        self.parts = [self.add_child(f"branches[{i}]", cfg) for i, cfg in enumerate(self.config.branches)]
        self.add_child("layer", self.config.layer, stacked=3)

    def forward(self, x: jax.Array) -> jax.Array:
        for part in self.parts:
            x = kn.remat(part)(x)
        with kn.call_name("again"):
            x = self.parts[0](x)
        return kn.scan(lambda c, _: (self.layer(c), None), x, over="layer")[0]


X = jnp.zeros(2)
EVERYTHING = {"branches[0].output", "branches[1].output", "branches[0]@again.output", "layer.output"}


def emitted(*patterns, **fields):
    _, outputs = kn.functional(Tree.Config(**fields).build())({}, {}, X, emit=patterns)
    return outputs.emitted


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("**", EVERYTHING),
        ("*.output", EVERYTHING),
        ("layer.*", {"layer.output"}),
        ("branches[0].output", {"branches[0].output", "branches[0]@again.output"}),
        ("branches[*].output", EVERYTHING - {"layer.output"}),
        ("branches[0]@again.*", {"branches[0]@again.output"}),
        ("branches[*]@*.output", {"branches[0]@again.output"}),
    ],
)
def test_patterns(pattern, paths):
    assert set(emitted(pattern)) == paths


def test_a_name_of_a_call_matches_that_call_alone():
    assert matches("a@x.out", "a@x.out")
    assert not matches("a@x.out", "a@y.out")
    assert not matches("a@x.out", "a.out")


def test_a_pattern_that_matches_nothing_names_what_is_near_and_what_exists():
    with pytest.raises(EmissionError) as error:
        emitted("layer.*", "layers.output")
    text = str(error.value)
    assert "emit='layers.output' matches nothing that Tree.forward emits" in text
    assert "did you mean 'layer.output'" in text
    assert "branches[1].output" in text


def test_it_is_found_out_when_traced_too():
    f = jax.jit(lambda x: kn.functional(Tree.Config().build())({}, {}, x, emit=("norm.**",))[1])
    with pytest.raises(EmissionError, match=r"emit='norm.\*\*' matches nothing that Tree.forward emits; choices: "):
        f(X)


def test_a_model_that_emits_nothing_says_so():
    silent = Leaf.Config(silent=True)
    with pytest.raises(EmissionError, match=r"emit='\*\*' matches nothing: Tree.forward emits nothing in this call"):
        emitted("**", branches=(silent,), layer=silent)


def test_one_pattern_may_be_a_string():
    _, outputs = kn.functional(Tree.Config().build())({}, {}, X, emit="layer.output")
    assert outputs.emitted["layer.output"].shape == (3, 2)


def test_nothing_is_kept_unasked():
    _, outputs = kn.functional(Tree.Config().build())({}, {}, X)
    assert not outputs.emitted


def test_a_calls_name_can_stand_in_a_path():
    with pytest.raises(ContextError, match=r"call_name\('a.b'\): the name is part of output"), kn.call_name("a.b"):
        pass
