"""The wrappers carry contexts through JAX transforms: same numbers as plain calls, and nothing lost."""

import jax
import jax.numpy as jnp
import kanawa as kn
import pytest
from jax.sharding import PartitionSpec as P
from kanawa.errors import ContextError, ModuleError
from kanawa.module import unstack


class Layer(kn.Module):
    class Config(kn.Module.Config):
        dim: int = kn.FROM_PARENT

    def setup(self) -> None:
        self.add_param("weight", (self.config.dim, self.config.dim), axes=("embed", "mlp"))
        self.add_state("steps", (), axes=())

    def forward(self, x: jax.Array) -> jax.Array:
        y = jnp.tanh(self.tag("product", x @ self.param("weight")))
        self.record("norm", kn.Mean(jnp.sum(y**2), y.size))
        self.add_loss("penalty", jnp.sum(y**2), y.size, 0.1)
        self.update("steps", self.state("steps") + 1)
        self.emit("output", y)
        if self.train:
            y = y + 0.1 * jax.random.normal(self.next_key(), y.shape)
        return y


class Tower(kn.Module):
    class Config(kn.Module.Config):
        dim: int = 4
        depth: int = 3
        layer: Layer.Config = Layer.Config()

    def setup(self) -> None:
        self.add_child("layer", self.config.layer, stacked=self.config.depth, dim=self.config.dim)

    def forward(self, x: jax.Array, unrolled: bool = False, remat: bool = False) -> jax.Array:
        def body(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return self.layer(carry), None

        return kn.scan(body, x, over="layer", unrolled=unrolled, remat=remat)[0]


class Holder(kn.Module):
    class Config(kn.Module.Config):
        inner: Layer.Config = Layer.Config(dim=4)

    def setup(self) -> None:
        self.add_child("inner", self.config.inner)

    def plain(self, x: jax.Array) -> jax.Array:
        return self.inner(x)

    def remat(self, x: jax.Array) -> jax.Array:
        return kn.remat(self.inner)(x)

    def jitted(self, x: jax.Array) -> jax.Array:
        return kn.jit(self.inner)(x)

    def mapped(self, x: jax.Array) -> jax.Array:
        return kn.vmap(lambda row: self.inner(row[None])[0])(x)

    def branch(self, flag: jax.Array, x: jax.Array) -> jax.Array:
        return kn.cond(flag, self.inner, self.inner, x)

    def uneven(self, flag: jax.Array, x: jax.Array) -> jax.Array:
        return kn.cond(flag, self.inner, lambda y: y, x)

    def looped(self, x: jax.Array) -> jax.Array:
        weight = self.inner.weight_only
        return kn.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, weight(c[1])), (0, x))[1]

    def sharded(self, x: jax.Array) -> jax.Array:
        run = kn.shard_map(self.inner, in_specs=(P("data"),), out_specs=P("data"), axis_names=("data",))
        return run(x)


class PureLayer(Layer):
    """Adds a method that records nothing, for the while loop."""

    class Config(Layer.Config):
        """Unchanged."""

    def weight_only(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ self.param("weight"))


@pytest.fixture(scope="module")
def tower():
    module = Tower.Config().build()
    key = jax.random.key(0)
    return module, kn.initialize(module, key), kn.initial_state(module, key)


@pytest.fixture(scope="module")
def holder():
    module = Holder.Config(inner=PureLayer.Config(dim=4)).build()
    key = jax.random.key(1)
    return module, kn.initialize(module, key), kn.initial_state(module, key)


X = jax.random.normal(jax.random.key(3), (8, 4))


def run(bundle, method, *args, **kwargs):
    module, params, state = bundle
    return kn.functional(module, method)(params, state, *args, **kwargs)


def same(a, b):
    return jax.tree.all(jax.tree.map(lambda p, q: jnp.allclose(p, q, atol=1e-6), a, b))


def test_stacked_parameters_have_a_layer_axis_and_differ_by_layer(tower):
    _, params, state = tower
    weight = params["layer"]["weight"]
    assert weight.shape == (3, 4, 4)
    assert not jnp.array_equal(weight[0], weight[1])
    assert state["layer"]["steps"].shape == (3,)


def test_layer_parameters_do_not_depend_on_the_depth(tower):
    _, params, _ = tower
    deeper = kn.initialize(Tower.Config(depth=5).build(), jax.random.key(0))
    assert jnp.array_equal(deeper["layer"]["weight"][:3], params["layer"]["weight"])


@pytest.mark.parametrize("train", [False, True])
def test_scan_equals_unrolled_with_outputs_and_noise(tower, train):
    key = jax.random.key(5)
    scanned = run(tower, "forward", X, key=key, train=train, emit=("**",))
    unrolled = run(tower, "forward", X, key=key, train=train, emit=("**",), unrolled=True)
    assert same(scanned, unrolled)
    _, outputs = scanned
    assert outputs.emitted["layer.output"].shape == (3, 8, 4)
    assert outputs.state["layer.steps"].tolist() == [1, 1, 1]
    assert float(outputs.losses["layer.penalty"].weight) == 3 * 32


def test_scan_accepts_parameters_kept_apart_by_layer(tower):
    module, params, state = tower
    apart = {"layer": unstack(params["layer"], 3)}
    assert same(
        kn.functional(module)(apart, state, X, unrolled=True)[0],
        kn.functional(module)(params, state, X)[0],
    )


def test_remat_changes_neither_results_nor_gradients(tower):
    module, params, state = tower

    def loss(p, remat):
        result, outputs = kn.functional(module)(p, state, X, key=jax.random.key(2), train=True, remat=remat)
        return result.sum() + outputs.total_loss()

    plain, again = jax.grad(loss)(params, False), jax.grad(loss)(params, True)
    assert same(plain, again)
    # The recomputation is really there: the backward program multiplies more often.
    text = [str(jax.make_jaxpr(jax.grad(lambda p, r=r: loss(p, r)))(params)) for r in (False, True)]
    assert text[1].count("tanh") > text[0].count("tanh")


def test_wrappers_give_what_the_plain_call_gives(holder):
    expected = run(holder, "plain", X)
    assert same(run(holder, "remat", X), expected)
    assert same(run(holder, "jitted", X), expected)
    assert same(run(holder, "branch", jnp.array(True), X), expected)


def test_vmap_reduces_metrics_and_keeps_state_shared(holder):
    result, outputs = run(holder, "mapped", X)
    expected, plain = run(holder, "plain", X)
    assert jnp.allclose(result, expected, atol=1e-6)
    assert jnp.allclose(outputs.metrics["inner.norm"].value(), plain.metrics["inner.norm"].value())
    assert outputs.state["inner.steps"].shape == ()


def test_vmap_gives_every_element_its_own_noise(holder):
    result, _ = run(holder, "mapped", jnp.zeros((8, 4)), key=jax.random.key(0), train=True)
    assert len({float(row[0]) for row in result}) == 8


def test_branches_that_record_differently_are_refused(holder):
    with pytest.raises(ContextError, match="both branches of kn.cond must record the same paths") as caught:
        run(holder, "uneven", jnp.array(True), X)
    assert "metrics inner.norm (only where true), losses inner.penalty (only where true)" in str(caught.value)
    assert "inner.steps" not in str(caught.value), "state that a branch leaves alone keeps its value"


def test_while_loop_reads_parameters(holder):
    module, params, _ = holder
    y = X
    for _ in range(3):
        y = jnp.tanh(y @ params["inner"]["weight"])
    assert jnp.allclose(run(holder, "looped", X)[0], y, atol=1e-6)


def test_shard_map_sums_metrics_over_shards(holder):
    module, params, state = holder
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
    with jax.set_mesh(mesh):
        result, outputs = jax.jit(kn.functional(module, "sharded"))(params, state, X)
    expected, plain = kn.functional(module, "plain")(params, state, X)
    assert jnp.allclose(result, expected, atol=1e-6)
    assert jnp.allclose(outputs.losses["inner.penalty"].value(), plain.losses["inner.penalty"].value())


def test_custom_vjp_cannot_see_a_context(holder):
    class Leaky(kn.Module):
        class Config(kn.Module.Config):
            """None."""

        def setup(self) -> None:
            self.add_param("w", (4,), axes=("norm",), init=kn.ones)

        def forward(self, x: jax.Array) -> jax.Array:
            def f(z: jax.Array) -> jax.Array:
                return z * self.param("w")[None, :]

            return kn.custom_vjp(f, lambda z: (f(z), None), lambda _, g: (g,))(x)

    module = Leaky.Config().build()
    with pytest.raises(ContextError, match="no module is running"):
        kn.functional(module)(kn.initialize(module, jax.random.key(0)), {}, X)


def test_scan_without_a_stacked_child_is_an_error(holder):
    class Lost(kn.Module):
        class Config(kn.Module.Config):
            """None."""

        def forward(self, x: jax.Array) -> jax.Array:
            return kn.scan(lambda c, _: (c, None), x, over="layer")[0]

    with pytest.raises(ModuleError, match="needs a child declared with stacked="):
        kn.functional(Lost.Config().build())({}, {}, X)


def test_random_draws_in_a_plain_scan_differ_by_iteration():
    class Draws(kn.Module):
        class Config(kn.Module.Config):
            """None."""

        def forward(self) -> jax.Array:
            def body(carry: None, _: None) -> tuple[None, jax.Array]:
                return carry, jax.random.normal(self.next_key())

            return kn.scan(body, None, length=4)[1]

    values, _ = kn.functional(Draws.Config().build())({}, {}, key=jax.random.key(0))
    assert len(set(values.tolist())) == 4
