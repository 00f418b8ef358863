"""Which loss term says how good a model is: the one that is declared, through every transform; never its name."""

import jax
import jax.numpy as jnp
import kanawa as kn
import pytest
from kanawa.errors import ModuleError

X = jnp.arange(8.0).reshape(2, 4)


class Term(kn.Module):
    """Adds one term; what it is called says nothing."""

    class Config(kn.Module.Config):
        name: str = "term"
        factor: float = 1.0
        primary: bool = False

    def forward(self, x):
        cfg = self.config
        self.add_loss(cfg.name, cfg.factor * jnp.sum(x), x.size, 0.5, primary=cfg.primary)
        return x


class Several(kn.Module):
    """Calls its terms in order, each inside a transform or not."""

    class Config(kn.Module.Config):
        terms: tuple[Term.Config, ...] = ()
        wrapper: str = "none"

    def setup(self):
        for i, term in enumerate(self.config.terms):
            self.add_child(f"terms[{i}]", term)

    def forward(self, x):
        for child in self.children.values():
            call = {"none": child, "remat": kn.remat(child), "jit": kn.jit(child)}[self.config.wrapper]
            x = call(x)
        return x


def outputs(*terms, wrapper="none"):
    module = Several.Config(terms=terms, wrapper=wrapper).build(name="model")
    return jax.jit(lambda x: kn.functional(module)({}, {}, x)[1])(X)


AUX = Term.Config(name="cross_entropy", factor=9.0)
MAIN = Term.Config(name="distance", factor=2.0, primary=True)


@pytest.mark.parametrize("wrapper", ["none", "remat", "jit"])
def test_the_declared_term_is_primary_whatever_the_others_are_called(wrapper):
    found = outputs(AUX, MAIN, AUX, wrapper=wrapper)
    assert found.primary_loss() == "terms[1].distance"
    assert float(found.total_loss()) == pytest.approx(0.5 * (9 + 2 + 9) * 3.5)


def test_of_several_declared_ones_it_is_the_first_called():
    found = outputs(Term.Config(name="z", primary=True), Term.Config(name="a", primary=True))
    assert found.primary_loss() == "terms[0].z"
    assert [loss.primary for _, loss in sorted(found.losses.items())] == [True, False]


def test_a_single_term_needs_no_declaration_and_none_is_none():
    assert outputs(AUX).primary_loss() == "terms[0].cross_entropy"
    assert outputs().primary_loss() is None


def test_several_terms_of_which_none_is_declared_are_refused():
    with pytest.raises(ModuleError, match=r"terms\[0\].cross_entropy, terms\[1\].size, .* none of them primary"):
        outputs(AUX, Term.Config(name="size")).primary_loss()


def test_parts_of_a_batch_keep_the_declaration():
    one, other = outputs(AUX, MAIN), outputs(AUX, MAIN)
    assert one.merge(other).primary_loss() == "terms[1].distance"
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), one, other)
    assert stacked.reduce_leading().primary_loss() == "terms[1].distance"
