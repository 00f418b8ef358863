"""A value one module offers reaches those after it, through every transform that runs its body once."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.errors import ModuleError

X = jnp.arange(4.0)


class Giver(kn.Module):
    """Scales by a parameter and offers the result."""

    class Config(kn.Module.Config):
        name: str = "kept"

    def setup(self):
        self.add_param("scale", (), axes=(), init=kn.ones)

    def forward(self, x):
        self.offer(self.config.name, x * self.param("scale", "float32"))
        return x + 1.0


class Taker(kn.Module):
    """Adds what was offered."""

    class Config(kn.Module.Config):
        name: str = "kept"

    def forward(self, x):
        return x + self.offered(self.config.name)


class Pair(kn.Module):
    """A giver, then a taker, `how` wrapped."""

    class Config(kn.Module.Config):
        giver: Giver.Config = Giver.Config()
        taker: Taker.Config = Taker.Config()
        how: str = "plain"
        layers: int = 3

    def setup(self):
        cfg = self.config
        stacked = cfg.layers if cfg.how.startswith(("scan", "unrolled", "apart")) else None
        self.add_child("giver", cfg.giver, stacked=stacked)
        self.add_child("taker", cfg.taker, stacked=stacked)

    def forward(self, x):
        how, wrap = self.config.how, {"remat": kn.remat, "jit": kn.jit}.get(self.config.how, lambda f: f)
        if how == "apart":
            x, _ = kn.scan(lambda c, _: (self.giver(c), None), x, over="giver")
            return kn.scan(lambda c, _: (self.taker(c), None), x, over="taker")[0]
        if how.startswith(("scan", "unrolled")):
            unrolled, remat = how.startswith("unrolled"), how.endswith("remat")
            body = lambda c, _: (self.taker(self.giver(c)), None)  # noqa: E731
            return kn.scan(body, x, over=("giver", "taker"), unrolled=unrolled, remat=remat)[0]
        return wrap(self.taker)(wrap(self.giver)(x))


def run(how="plain", layers=3, **changes):
    module = Pair.Config(how=how, layers=layers, **changes).build(name="pair")
    params = kn.initialize(module, jax.random.key(0))

    @jax.jit
    def call(params):
        y, outputs = kn.functional(module)(params, {}, X)
        assert not outputs.offered
        return y

    grads = jax.grad(lambda p: call(p).sum())(params)
    return call(params), grads["giver"]["scale"]


@pytest.mark.parametrize("how", ["plain", "remat", "jit"])
def test_what_follows_sees_the_offer(how):
    y, grad = run(how)
    np.testing.assert_allclose(y, 2 * X + 1.0)
    np.testing.assert_allclose(grad, X.sum())


@pytest.mark.parametrize("how", ["scan", "scan-remat", "unrolled", "unrolled-remat"])
def test_in_a_loop_it_is_the_same_iterations(how):
    wanted = X
    for _ in range(3):
        wanted = 2 * wanted + 1.0
    y, grad = run(how)
    np.testing.assert_allclose(y, wanted)
    np.testing.assert_allclose(grad, run("scan")[1])
    assert grad.shape == (3,)


def test_a_single_iteration_passes_its_offer_on_and_a_later_loop_reads_it_in_each():
    y, grad = run("apart", layers=1)
    np.testing.assert_allclose(y, 2 * X + 1.0)
    np.testing.assert_allclose(grad, [X.sum()])


def test_several_iterations_keep_theirs_and_the_error_says_so():
    with pytest.raises(ModuleError, match="pair.taker: no module that ran before offers 'kept'; .*same iteration"):
        run("apart", layers=2)
    with pytest.raises(ModuleError, match="offers 'keep'; did you mean 'kept'"):
        run(taker=Taker.Config(name="keep"))
