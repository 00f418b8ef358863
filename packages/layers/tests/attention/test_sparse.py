"""Sparse attention: selected keys are the best by the indexer, and the indexer learns the attention's weights."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import Sequences
from kanawa.errors import ConfigError, ModuleError
from kanawa.testing.mixer import MixerConformance
from kanawa.testing.modifier import ModifierConformance
from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.attention.latent import LatentAttention
from kanawa_layers.attention.paged_cache import PagedCache
from kanawa_layers.attention.quantised_cache import QuantisedCache
from kanawa_layers.attention.ring_cache import RingCache
from kanawa_layers.attention.sparse import (
    LightningIndexer,
    SelectedDotProduct,
    SparseAttention,
    SparseAttentions,
    SparseLatentAttention,
)
from kanawa_layers.recipes.llama import llama

from .kinds import WIDTH, grouped, latent

INDEXER = LightningIndexer.Config(num_heads=2, head_dim=8, rope_dim=4)
SEQUENCES = Sequences(jnp.asarray([[0, 1, 2, 3, 0, 1]] * 2), jnp.asarray([[1, 1, 1, 1, 2, 2]] * 2))
_LEARNS = "the indexer learns from its own loss, not through the result"


def sparse(plain, top_k=3, **changes):
    kind = SparseLatentAttention if isinstance(plain, LatentAttention.Config) else SparseAttention
    cfg = kind.Config(indexer=INDEXER, dot_product=SelectedDotProduct.Config(top_k=top_k), **changes)
    fields = {name: getattr(plain, name) for name in plain.fields() if plain.is_set(name)}
    return cfg.set(**fields)


class TestSparseAttention(MixerConformance):
    unsupported = {"gradients": _LEARNS}

    def config(self):
        return sparse(grouped())


@pytest.mark.nightly
class TestSparseLatentAttention(MixerConformance):
    unsupported = {"gradients": _LEARNS, "scan": "compared for the other"}

    def config(self):
        return sparse(latent(query_rank=9))


class TestSparseAttentions(ModifierConformance):
    touches = ("stack.layer.attention", "stack.layer.attention.**")

    def config(self):
        return llama(num_layers=1, input_dim=16, num_heads=2, num_kv_heads=2, hidden_dim=24, vocab_size=20)

    def modifier(self):
        return SparseAttentions.Config(top_k=3, heads=2, head_dim=8, rope_dim=4).build()


@pytest.mark.parametrize(
    "plain", [pytest.param(grouped(), marks=pytest.mark.nightly), latent(query_rank=9)], ids=["grouped", "latent"]
)
def test_with_room_for_every_key_it_is_plain_attention(plain):
    module = sparse(plain, top_k=6).build(name="layer")
    params = kn.initialize(module, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (2, 6, WIDTH))
    expected = kn.functional(plain.build(name="layer"))(
        {n: p for n, p in params.items() if n != "indexer"}, {}, x, SEQUENCES
    )[0][0]
    np.testing.assert_array_equal(kn.functional(module)(params, {}, x, SEQUENCES)[0][0], expected)


def test_keys_and_loss_are_those_of_loops():
    module = sparse(grouped(), top_k=2).build(name="layer")
    params = kn.initialize(module, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (2, 6, WIDTH))
    positions, segments = (np.asarray(a) for a in SEQUENCES[:2])
    q, k, w = (
        np.asarray(a) for a in kn.functional(module.indexer)(params["indexer"], {}, x, x, SEQUENCES.positions)[0]
    )
    plain = {n: p for n, p in params.items() if n != "indexer"}
    base = GroupedQueryAttention(grouped(), name="layer")
    weights = kn.functional(base)(plain, {}, x, SEQUENCES, emit=("dot_product.weights",))[1]
    full = np.asarray(weights.emitted["dot_product.weights"])
    chosen, loss = np.zeros((2, 6, 6), bool), 0.0
    for row in range(2):
        for t in range(6):
            seen = [s for s in range(t + 1) if segments[row, s] == segments[row, t]]
            scores = [(w[row, t] * np.maximum(q[row, t] @ k[row, s, 0], 0)).sum() for s in seen]
            best = sorted(range(len(seen)), key=lambda i: (-scores[i], i))[:2]
            chosen[row, t, [seen[i] for i in best]] = True
            target = np.mean(
                [h[[seen[i] for i in best]] / h[[seen[i] for i in best]].sum() for h in full[row, :, t]], 0
            )
            own = np.exp([scores[i] for i in best])
            loss += float((target * (np.log(target) - np.log(own / own.sum()))).sum())
    _, outputs = kn.functional(module)(params, {}, x, SEQUENCES, train=True, emit=("dot_product.weights",))
    found = np.asarray(outputs.emitted["dot_product.weights"])
    np.testing.assert_array_equal(found.any(1) != 0, chosen)
    kept = full * chosen[:, None]
    np.testing.assert_allclose(found, kept / kept.sum(-1, keepdims=True), atol=1e-5)
    np.testing.assert_allclose(outputs.losses["dot_product.index_loss"].total, loss, rtol=1e-4)
    assert float(outputs.losses["dot_product.index_loss"].weight) == 12.0


def test_the_index_loss_reaches_the_indexer_alone():
    module = sparse(latent(query_rank=9), top_k=3).build(name="layer")
    params = kn.initialize(module, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (2, 6, WIDTH))

    @jax.grad
    def loss(params):
        return kn.functional(module)(params, {}, x, SEQUENCES, train=True)[1].total_loss()

    grads = flatten_paths(jax.jit(loss)(params))
    reached = {path for path, grad in grads.items() if np.abs(grad).max() > 0}
    assert reached == {path for path in grads if path.startswith("indexer.")}


def test_paged_index_keys_give_the_same():
    dense = sparse(grouped()).build(name="layer")
    pages = PagedCache.Config(page_size=2)
    paged = sparse(grouped(), cache=pages, index_cache=pages).build(name="layer")
    params = kn.initialize(dense, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (2, 6, WIDTH))
    caches = [
        {n: jnp.zeros(s.shape, s.dtype) for n, s in m.cache_spec(2, 6, "float32").items()} for m in (dense, paged)
    ]
    table = jnp.asarray([[5, 0, 3], [1, 4, 2]])
    calls = [jax.jit(lambda *args, m=m: kn.functional(m)(params, {}, *args)[0]) for m in (dense, paged)]
    for start, stop in ((0, 4), (4, 5), (5, 6)):
        lengths = jnp.full((2,), start)
        known = Sequences(lengths=lengths), Sequences(lengths=lengths, page_table=table)
        results = [call(x[:, start:stop], *inputs) for call, *inputs in zip(calls, known, caches, strict=True)]
        np.testing.assert_allclose(results[0][0], results[1][0], atol=1e-5)
        caches = [cache for _, cache in results]


@pytest.mark.parametrize(("kind", "atol"), [(RingCache, 1e-5), (QuantisedCache, 0.05)])
def test_index_keys_lie_in_other_caches_too(kind, atol):
    caches = kind.Config()
    modules = [
        sparse(grouped(), top_k=6, **c).build(name="layer") for c in ({}, {"cache": caches, "index_cache": caches})
    ]
    params = kn.initialize(modules[0], jax.random.key(0))
    x, written = jax.random.normal(jax.random.key(1), (2, 6, WIDTH)), []
    for module in modules:
        call = jax.jit(lambda *args, m=module: kn.functional(m)(params, {}, *args)[0])
        cache = {n: jnp.zeros(s.shape, s.dtype) for n, s in module.cache_spec(2, 6, "float32").items()}
        for start, stop in ((0, 4), (4, 5), (5, 6)):
            known = Sequences(lengths=jnp.full((2,), start))
            y, cache = call(x[:, start:stop], known, cache)
        written.append(y)
    np.testing.assert_allclose(*written, atol=atol)


def test_what_it_cannot_do_is_said():
    module = sparse(grouped()).build(name="layer")
    params = kn.initialize(module, jax.random.key(0))
    ragged = Sequences(lengths=jnp.zeros(2, int), query_starts=jnp.array([0, 4, 6]))
    with pytest.raises(ModuleError, match="doesn't support a ragged row"):
        kn.functional(module)(params, {}, jnp.zeros((1, 6, WIDTH)), ragged)
    cfg = llama(num_layers=1, input_dim=16, num_heads=2, num_kv_heads=2, hidden_dim=24, vocab_size=20)
    cfg.stack.layer.set(attention=sparse(grouped()))
    with pytest.raises(ConfigError, match="SparseAttention.Config isn't supported"):
        SparseAttentions.Config().build()(cfg)
