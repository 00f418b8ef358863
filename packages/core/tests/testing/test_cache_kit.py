"""Caches of nobody's package, each with the check of the kit that has to fail for it."""

import jax.numpy as jnp
import kanawa as kn
import pytest
from kanawa.contracts import Cache, CacheView
from kanawa.testing.cache import CacheConformance

PAGE = 4


class Pages(Cache):
    """Row b owns the b-th run of pages; `fault` is what it does wrong."""

    class Config(Cache.Config):
        fault: str = ""
        exact: bool = True

    def setup(self):
        self.exact = self.config.exact

    @kn.nowrap
    def spec(self, rows, length, dtype):
        cfg, pages = self.config, rows * -(-length // PAGE)
        axes = ("pages", None, "kv_heads", "head_dim")
        widths = {"keys": cfg.key_dim, "values": cfg.value_dim}
        return {n: kn.ParamSpec((pages, PAGE, cfg.num_kv_heads, w), axes, dtype, kn.zeros) for n, w in widths.items()}

    def extend(self, state, k, v, sequences):
        fault, (rows, length) = self.config.fault, k.shape[:2]
        table = jnp.arange(state["keys"].shape[0], dtype=jnp.int32).reshape(rows, -1)
        at = sequences.lengths[:, None] + jnp.arange(length)[None] - int(fault == "late")
        page = jnp.take_along_axis(table, at // PAGE, 1)
        if fault == "shared":
            page = page[::-1]
        finite = jnp.isfinite(v).all(-1, keepdims=True)
        if fault == "silent":
            v = jnp.nan_to_num(v)
        elif fault != "strange":
            k, v = jnp.where(finite, k, jnp.nan), jnp.where(finite, v, 0.0)
        if fault == "rounded":
            v = v.astype(jnp.bfloat16).astype(v.dtype)
        pools = {n: state[n].at[page, at % PAGE].set(x) for n, x in (("keys", k), ("values", v))}
        if fault == "widened":
            pools = {n: x.astype(jnp.bfloat16) for n, x in pools.items()}
        lengths = sequences.lengths + length
        lengths = jnp.minimum(lengths, 3) if fault == "forgetful" else lengths
        return CacheView(pools, pools["keys"], pools["values"], kv_lengths=lengths, page_table=table)


def kit(fault="", exact=True, tolerance=1e-6):
    sizes = {"num_kv_heads": 2, "key_dim": 8, "value_dim": 4, "reach": None}

    class Kit(CacheConformance):
        def config(self):
            return Pages.Config(fault=fault, exact=exact, **sizes)

    Kit.tolerance = tolerance
    return Kit()


class TestPages(CacheConformance):
    def config(self):
        return kit().config()


LAID_OUT = "test_arrays_are_laid_out_as_said"
READ = "test_what_was_written_is_read_by_its_own_row"
BROKEN = "test_a_value_that_is_not_finite_stays_with_those_who_see_it"


@pytest.mark.parametrize(
    ("fault", "test", "said"),
    [
        ("widened", LAID_OUT, "bfloat16"),
        ("late", READ, "Not equal to tolerance"),
        ("shared", READ, "Not equal to tolerance"),
        ("forgetful", READ, r"row 0 can't read positions \[3\]: a cache that forgets says `exact = False`"),
        ("rounded", READ, "it says that it is `exact`"),
        (
            "strange",
            BROKEN,
            "page 0 keeps a value that isn't finite at its token 2: pages change hands.*NaN into the key",
        ),
        ("silent", BROKEN, "gets finite numbers, undetected"),
    ],
)
def test_what_a_cache_does_wrong_is_said(fault, test, said):
    with pytest.raises(AssertionError, match=f"(?s){said}"):
        getattr(kit(fault), test)()


def test_a_cache_that_says_that_it_is_not_exact_may_forget_and_round():
    for fault in ("forgetful", "rounded"):
        getattr(kit(fault, exact=False, tolerance=0.01), READ)()
    with pytest.raises(AssertionError, match="beyond its tolerance"):
        getattr(kit("rounded", exact=False), READ)()
