"""Equinox and NNX modules in the slot of a feed-forward: the library's numbers, our parameters."""

import equinox as eqx
import jax
import jax.numpy as jnp
import kanawa as kn
import pytest
from flax import nnx
from kanawa.arrays.tree import flatten_paths
from kanawa.config import from_json, to_json
from kanawa.contracts import FeedForward, Sequences
from kanawa.errors import ModuleError
from kanawa.testing.layer import LayerConformance
from kanawa_layers.adapters.feed_forward import EquinoxFeedForward, NNXFeedForward, library
from kanawa_layers.recipes.llama import llama

WIDTH, HIDDEN = 8, 16


def mlp(input_dim: int, hidden_dim: int, key: jax.Array) -> eqx.nn.MLP:
    """One hidden layer."""
    return eqx.nn.MLP(input_dim, input_dim, hidden_dim, depth=1, key=key)


class Noisy(eqx.Module):
    """Draws when it is called in training."""

    linear: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self, width: int, key: jax.Array) -> None:
        self.linear = eqx.nn.Linear(width, width, key=key)
        self.dropout = eqx.nn.Dropout(0.5)

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        return self.dropout(self.linear(x), key=key)


class Table(eqx.Module):
    """Holds integers."""

    table: jax.Array

    def __init__(self, key: jax.Array) -> None:
        self.table = jnp.arange(3)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x


class Gated(nnx.Module):
    """As a stranger would write it."""

    def __init__(self, input_dim: int, hidden_dim: int, rngs: nnx.Rngs) -> None:
        self.gate = nnx.Linear(input_dim, hidden_dim, rngs=rngs)
        self.up = nnx.Linear(input_dim, hidden_dim, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(hidden_dim, input_dim, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(nnx.silu(self.gate(x)) * self.up(x))


OPEN = {"input_dim": kn.FROM_PARENT, "hidden_dim": kn.FROM_PARENT}
EQUINOX = EquinoxFeedForward.Config(
    input_dim=WIDTH,
    hidden_dim=HIDDEN,
    module=kn.config_for(mlp, **OPEN, key=kn.FROM_PARENT),
    axes={"layers_0_weight": ("mlp", "embed"), "layers_1_weight": ("embed", "mlp")},
)
NNX = NNXFeedForward.Config(
    input_dim=WIDTH, hidden_dim=HIDDEN, module=kn.config_for(Gated, **OPEN, rngs=kn.FROM_PARENT)
)
X = jax.random.normal(jax.random.key(2), (2, 3, WIDTH))


class Adapted(LayerConformance):
    """What any layer promises, these promise too."""

    unsupported = {"foreign names": "checkpoints of others don't know the module"}

    def inputs(self, key):
        return jax.random.normal(key, (2, 8, WIDTH)), Sequences()


class TestEquinox(Adapted):
    def config(self):
        return EQUINOX.clone()


class TestNNX(Adapted):
    def config(self):
        return NNX.clone()


def run(cfg, **options):
    module = cfg.build()
    params = kn.initialize(module, jax.random.key(0))
    result, _ = kn.functional(module)(params, {}, X, Sequences(), **options)
    return module, params, result


def test_equinox_computes_what_it_would_alone():
    module, params, result = run(EQUINOX.clone())
    assert {p: x.shape for p, x in params.items()} == {
        "layers_0_weight": (HIDDEN, WIDTH),
        "layers_0_bias": (HIDDEN,),
        "layers_1_weight": (WIDTH, HIDDEN),
        "layers_1_bias": (WIDTH,),
    }
    alone = mlp(WIDTH, HIDDEN, jax.random.key(9))
    leaves = ("layers[0].weight", "layers[0].bias", "layers[1].weight", "layers[1].bias")
    for path in leaves:
        where = eval(f"lambda m: m.{path}")  # noqa: S307 (a constant of this test)
        alone = eqx.tree_at(where, alone, params[path.replace("[", "_").replace("].", "_")])
    assert jnp.allclose(result, jax.vmap(jax.vmap(alone))(X), atol=1e-6)
    assert module.param_specs["layers_0_weight"].axes == ("mlp", "embed")
    assert module.flops_per_token(1.0) == 4 * WIDTH * HIDDEN


def test_nnx_computes_what_it_would_alone():
    _, params, result = run(NNX.clone())
    alone = Gated(WIDTH, HIDDEN, rngs=nnx.Rngs(9))
    for name, value in params.items():
        owner, _, leaf = name.rpartition("_")
        getattr(getattr(alone, owner), leaf)[...] = value
    assert jnp.allclose(result, alone(X), atol=1e-6)


@pytest.mark.parametrize("cfg", [EQUINOX, NNX], ids=["equinox", "nnx"])
def test_parameters_come_from_our_key_as_the_library_draws_them(cfg):
    module = cfg.build()
    first, again, other = (flatten_paths(kn.initialize(module, jax.random.key(s))) for s in (0, 0, 1))
    assert all(jnp.array_equal(first[path], again[path]) for path in first)
    matrices = [path for path, x in first.items() if x.ndim > 1]
    assert not any(jnp.array_equal(first[path], other[path]) for path in matrices)
    drawn = module.arrays(jax.random.key(5))
    assert drawn.keys() == first.keys()


@pytest.mark.parametrize("cfg", [EQUINOX, NNX], ids=["equinox", "nnx"])
def test_it_fits_the_slot_of_any_model(cfg):
    model = llama(vocab_size=32, num_layers=2, input_dim=WIDTH, hidden_dim=HIDDEN, num_heads=2, num_kv_heads=2)
    new = type(cfg)(module=cfg.module, axes=cfg.axes)
    assert kn.replace(model, target=FeedForward, new=new) == ["stack.layer.feed_forward"]
    assert from_json(to_json(model)) == model
    built = model.build()
    specs = flatten_paths(kn.param_specs(built))
    mine = {p.rpartition(".")[2]: s for p, s in specs.items() if "feed_forward" in p}
    assert all(spec.shape[0] == 2 and spec.axes[0] == "layers" for spec in mine.values())
    params = jax.jit(lambda key: kn.initialize(built, key))(jax.random.key(0))
    weight = max((x for p, x in flatten_paths(params).items() if "feed_forward" in p), key=lambda x: x.ndim)
    assert not jnp.array_equal(weight[0], weight[1]), "each layer draws its own"


def test_dropout_draws_in_training_only():
    cfg = EquinoxFeedForward.Config(
        input_dim=WIDTH, hidden_dim=HIDDEN, draws=True, module=kn.config_for(Noisy, WIDTH, key=kn.FROM_PARENT)
    )
    _, _, quiet = run(cfg.clone())
    _, _, noisy = run(cfg.clone(), train=True, key=jax.random.key(1))
    assert float(jnp.mean(noisy == 0)) > 0.2
    assert not bool(jnp.any(quiet == 0))


def test_what_cannot_be_trained_is_named():
    table = EQUINOX.clone().set(module=kn.config_for(Table, key=kn.FROM_PARENT), axes={})
    with pytest.raises(ModuleError, match="Table holds table, int32: only floating arrays can be trained"):
        run(table)
    norm = kn.config_for(nnx.BatchNorm, WIDTH, rngs=kn.FROM_PARENT)
    with pytest.raises(ModuleError, match=r"BatchNorm holds variables that aren't parameters: mean, var"):
        run(NNX.clone().set(module=norm))


def test_mistakes_are_told():
    with pytest.raises(ModuleError, match="'layers_0_wieght', which is no parameter; did you mean 'layers_0_weight'"):
        EQUINOX.clone().set(axes={"layers_0_wieght": ("mlp", "embed")}).build()
    narrow = kn.config_for(eqx.nn.Linear, WIDTH, 3, key=kn.FROM_PARENT)
    with pytest.raises(ModuleError, match=r"Linear turns tokens \(6, 8\) into \(6, 3\), expected the same shape"):
        run(EQUINOX.clone().set(module=narrow, axes={}))
    with pytest.raises(kn.KanawaError, match=r"no_such_library is not .* install 'kanawa-layers\[equinox\]'"):
        library("no_such_library", "equinox")
