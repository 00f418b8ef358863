"""An engine's copy of the parameters: cast once where they are read in the computing dtype alone."""

import jax
import jax.numpy as jnp
import numpy as np
from kanawa_runtime.serve.engine.cast_once import cast_params, read_as


def _norm(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True)) * scale


def test_only_what_is_always_cast_is_cast_at_load():
    def program(params, x):
        inner = jax.jit(lambda w, x: x @ w.astype(jnp.bfloat16))
        x = inner(params["weight"], x)
        x = _norm(x, params["norm"]).astype(jnp.bfloat16)
        router = x.astype(jnp.float32) @ params["router"]
        both = x @ params["both"].astype(jnp.bfloat16) + params["both"][:1].astype(jnp.bfloat16)
        looked_up = jnp.take(params["table"].astype(jnp.bfloat16), jnp.array([1, 2]), axis=0)
        looped = jax.lax.fori_loop(0, 2, lambda _, x: x @ params["looped"].astype(jnp.bfloat16), x)
        return router, both, looped, looked_up

    weights = np.random.default_rng(0).normal(size=(6, 4, 4)).astype(np.float32)
    names = ("weight", "router", "both", "looped", "unused")
    params = {**dict(zip(names, weights, strict=False)), "norm": weights[5, :1], "table": weights[5]}
    x = jnp.ones((2, 4), jnp.bfloat16)
    which = read_as(program, params, (x,), "bfloat16")
    # A loop's body isn't looked into, and what is also read in fp32 keeps its digits.
    assert [name for name, here in which.items() if here] == ["weight"]
    ready = cast_params(params, which, "bfloat16")
    assert ready["weight"].dtype == jnp.bfloat16 and ready["norm"].dtype == jnp.float32
    for before, after in zip(program(params, x), program(ready, x), strict=True):
        assert np.array_equal(before, after)
