"""Conformance of a key-value cache: a row reads what it wrote, and nothing reaches another sequence."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from kanawa.contracts import CacheView, Sequences
from kanawa.kernels.attention import attention
from kanawa.module import functional
from kanawa.testing.conformance import ConfiguredConformance

_ROWS = 2


class CacheConformance(ConfiguredConformance):
    """What every `Cache` promises. `config` returns the cache's, complete with what an attention layer would give.

    An `exact` one reads all within its reach bit for bit; another may forget tokens, and round within `tolerance`.
    `unsupported` may hold "attention" (values are part of the keys), with a reason.
    """

    #: How many tokens each call writes; more of them than the reach, if there is one.
    cuts: ClassVar[tuple[int, ...]] = (3, 1, 2, 1)
    #: Difference allowed between a number that was written and the one that is read, in parts of the largest.
    tolerance: ClassVar[float] = 1e-6

    # --- what the kit needs ----------------------------------------------------------------------------------

    def tokens(self, seed: int) -> tuple[jax.Array, jax.Array | None]:
        """Returns keys [rows, length, K, D] and values of sequences, None where there are none of their own."""
        cfg, rng = self.config(), np.random.default_rng(seed)

        def drawn(width: int) -> jax.Array:
            return jnp.asarray(rng.standard_normal((_ROWS, sum(self.cuts), cfg.num_kv_heads, width)), jnp.float32)

        return drawn(cfg.key_dim), drawn(cfg.value_dim) if cfg.value_dim else None

    def empty(self) -> dict[str, Any]:
        """Returns the cache before any token."""
        spec = self.config().build(name="cache").spec(_ROWS, sum(self.cuts), "float32")
        return {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in spec.items()}

    def extended(
        self, state: dict[str, Any] | None, k: jax.Array, v: jax.Array | None, done: int
    ) -> tuple[CacheView, dict[str, Any]]:
        """Returns what there is to read after new tokens, and the state."""
        module = self.config().build(name="cache")
        step = jax.jit(functional(module, "extend"))
        lengths = jnp.full((_ROWS,), done, jnp.int32)
        view, _ = step({}, {}, self.empty() if state is None else state, k, v, Sequences(lengths=lengths))
        assert view.state is not None, "a view of a cache has to hold the new state"
        return view, view.state

    def read(self, view: CacheView, row: int) -> dict[int, tuple[np.ndarray, np.ndarray | None]]:
        """Returns a row's keys and values by position, as far as they exist."""
        both = [view.k, view.v]
        if view.page_table is not None:
            pages = jnp.clip(view.page_table[row], 0, view.k.shape[0] - 1)
            k, v = (None if x is None else np.asarray(x[pages]).reshape(-1, *x.shape[2:]) for x in both)
        else:
            k, v = (None if x is None else np.asarray(x[row]) for x in both)
        assert k is not None
        places = np.arange(k.shape[0]) if view.kv_positions is None else np.asarray(view.kv_positions[row])
        end = sum(self.cuts) if view.kv_lengths is None else int(view.kv_lengths[row])
        return {int(p): (k[i], None if v is None else v[i]) for i, p in enumerate(places) if 0 <= p < end}

    def attended(self, view: CacheView, count: int, done: int) -> np.ndarray:
        """Returns what one query at a row's end makes of it, by whatever kernel would serve it."""
        assert view.v is not None
        cfg = self.config()
        q = jnp.ones((_ROWS, 1, cfg.num_kv_heads, cfg.key_dim))
        at = jnp.full((_ROWS, 1), done + count - 1, jnp.int32)
        operands: dict[str, Any] = {"kv_lengths": view.kv_lengths, "kv_positions": view.kv_positions}
        out = attention(q, view.k, view.v, q_positions=at, page_table=view.page_table, mode="decode", **operands)
        return np.asarray(out)

    # --- the checks ------------------------------------------------------------------------------------------

    def test_arrays_are_laid_out_as_said(self) -> None:
        spec = self.config().build(name="cache").spec(_ROWS, sum(self.cuts), "float32")
        for name, leaf in spec.items():
            assert len(leaf.axes) == len(leaf.shape), f"{name} has shape {leaf.shape} and axes {leaf.axes}"
        k, v = self.tokens(0)
        state = self.empty()
        _, after = self.extended(state, k[:, :1], None if v is None else v[:, :1], 0)
        found = {name: (array.shape, str(array.dtype)) for name, array in after.items()}
        assert found == {name: (leaf.shape, str(jnp.dtype(leaf.dtype))) for name, leaf in spec.items()}

    def test_what_was_written_is_read_by_its_own_row(self) -> None:
        k, v = self.tokens(0)
        exact, reach, state, done = self.config().build(name="cache").exact, self.config().reach, None, 0
        for size in self.cuts:
            new = [None if x is None else x[:, done : done + size] for x in (k, v)]
            assert new[0] is not None
            view, state = self.extended(state, new[0], new[1], done)
            done += size
            # The first of the new tokens sees so far back.
            first = 0 if reach is None else max(0, done - size - reach + 1)
            for row in range(_ROWS):
                held = self.read(view, row)
                missing = sorted(set(range(first, done)) - set(held))
                unread = f"after {done} tokens row {row} can't read positions {missing}"
                assert not (exact and missing), f"{unread}: a cache that forgets says `exact = False`"
                assert len(missing) < done - first, unread
                for position in sorted({*range(first, done)} - {*missing}):
                    for read, written in zip(held[position], (k, v), strict=True):
                        if written is not None:
                            assert read is not None, "values were written, and none are read"
                            atol = 0.0 if exact else self.tolerance * float(jnp.abs(written).max())
                            said = "it says that it is `exact`" if exact else "beyond its tolerance"
                            np.testing.assert_allclose(read, written[row, position], 0, atol, err_msg=said)

    def test_a_value_that_is_not_finite_stays_with_those_who_see_it(self) -> None:
        self.skip_unless("attention")
        k, v = self.tokens(1)
        assert v is not None, 'values are part of the keys: list "attention" in `unsupported`'
        size = self.cuts[0]
        broken = v[:, :size].at[0, size - 1, 0, 0].set(jnp.nan)
        view, state = self.extended(None, k[:, :size], broken, 0)
        whole, _ = self.extended(None, k[:, :size], v[:, :size], 0)
        seen, wanted = self.attended(view, size, 0), self.attended(whole, size, 0)
        assert not np.isfinite(seen[0]).all(), "a row whose value isn't finite gets finite numbers, undetected"
        np.testing.assert_allclose(seen[1], wanted[1], rtol=1e-5, err_msg="one row's NaN reached another row")
        self._check_pool(view)
        # The next sequence in the same place: what the first one left behind is hidden, and weighed with zero.
        again, _ = self.extended(state, k[:, :1], v[:, :1], 0)
        fresh, _ = self.extended(None, k[:, :1], v[:, :1], 0)
        np.testing.assert_allclose(
            self.attended(again, 1, 0), self.attended(fresh, 1, 0), rtol=1e-5, atol=1e-7,
            err_msg="what a sequence that broke left in the cache reaches the next one in its place",
        )  # fmt: skip

    def _check_pool(self, view: CacheView) -> None:
        # Rows of pages may be read by a kernel that weighs hidden values with zero, and zero times NaN is NaN.
        if view.page_table is None or view.v is None or not jnp.issubdtype(view.v.dtype, jnp.floating):
            return
        wrong = np.argwhere(~np.isfinite(np.asarray(view.v)).all(axis=(2, 3)))
        assert not wrong.size, (
            f"page {wrong[0][0]} keeps a value that isn't finite at its token {wrong[0][1]}: pages change hands, and "
            "the page's next sequence multiplies it by zero, which is NaN. Write zeros in its place and NaN into "
            "the key, whose score is replaced where it is hidden: attention over the token still yields NaN"
        )
