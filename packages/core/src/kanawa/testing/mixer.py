"""Conformance of what mixes a sequence: cached decoding equals the full forward, and no token sees a later one."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from kanawa.arrays.spec import ParamSpec
from kanawa.contracts import Sequences
from kanawa.module import functional
from kanawa.testing.layer import LayerConformance


class MixerConformance(LayerConformance):
    """For attention, recurrences, blocks and stacks: `forward(x, sequences, cache)` returns (result, new cache).

    `unsupported` may also hold "cache", "causality" (encoders) and "packing", with a reason each.
    """

    #: How many tokens each call sees when a sequence is decoded piece by piece.
    cuts: ClassVar[tuple[int, ...]] = (3, 1, 1)
    #: Absolute difference allowed between one call and several.
    tolerance: ClassVar[float] = 5e-5

    def width(self) -> int:
        """Returns the size of the residual stream."""
        result: int = self.config().input_dim
        return result

    def tokens(self, key: jax.Array) -> jax.Array:
        """Returns [2, length, width] activations."""
        return jax.random.normal(key, (2, sum(self.cuts), self.width()))

    def inputs(self, key: jax.Array) -> tuple[Any, ...]:
        """Returns activations of one sequence a row."""
        return self.tokens(key), Sequences()

    def empty_cache(self, rows: int, length: int) -> Any:
        """Returns the cache before any token."""
        module, _, _ = self.build()
        spec = module.cache_spec(rows, length, "float32")
        zeros = lambda s: jnp.zeros(s.shape, s.dtype)  # noqa: E731
        return jax.tree.map(zeros, spec, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))

    def test_cached_decode_equals_the_full_forward(self) -> None:
        self.skip_unless("cache")
        module, params, state = self.build()
        x = self.tokens(jax.random.key(4))
        full = self.compiled_call(params, x, Sequences())

        @jax.jit
        def piece(x: jax.Array, lengths: jax.Array, cache: Any) -> Any:
            return functional(module)(params, state, x, Sequences(lengths=lengths), cache)[0]

        cache, done, parts = self.empty_cache(x.shape[0], x.shape[1]), 0, []
        for size in self.cuts:
            result, cache = piece(x[:, done : done + size], jnp.asarray(done), cache)
            parts.append(result)
            done += size
        np.testing.assert_allclose(jnp.concatenate(parts, 1), full, rtol=1e-4, atol=self.tolerance)

    def test_no_token_sees_the_future(self) -> None:
        self.skip_unless("causality")
        _, params, _ = self.build()
        x = self.tokens(jax.random.key(4))
        # Compared bit by bit: what doesn't see the last token computes the very same numbers.
        changed = x.at[:, -1].add(1.0)
        before, after = (self.compiled_call(params, tokens, Sequences()) for tokens in (x, changed))
        np.testing.assert_array_equal(before[:, :-1], after[:, :-1])
        assert not np.array_equal(before[:, -1], after[:, -1]), "the last token doesn't see itself"

    def test_packed_segments_do_not_see_each_other(self) -> None:
        self.skip_unless("packing")
        _, params, _ = self.build()
        x = self.tokens(jax.random.key(4))
        length, cut = x.shape[1], x.shape[1] // 2
        ids = jnp.broadcast_to(jnp.where(jnp.arange(length) < cut, 1, 2), x.shape[:2])
        positions = jnp.broadcast_to(jnp.where(jnp.arange(length) < cut, 0, -cut) + jnp.arange(length), x.shape[:2])
        packed = self.compiled_call(params, x, Sequences(positions, ids))
        for where in (slice(cut), slice(cut, None)):
            alone = self.compiled_call(params, x[:, where], Sequences())
            np.testing.assert_allclose(packed[:, where], alone, rtol=1e-4, atol=self.tolerance)
