"""A Llama written by hand in plain JAX and optax, with nothing of Kanawa: what the framework is measured against."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

Tree = Any


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of the model: by default the workload of the step-overhead benchmark."""

    layers: int = 8
    width: int = 512
    heads: int = 8
    kv_heads: int = 4
    hidden: int = 1536
    vocab: int = 8192
    eps: float = 1e-5
    theta: float = 10_000.0

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.width // self.heads


def init(shape: Shape, key: jax.Array) -> Tree:
    """Returns parameters; layers are stacked in the leading axis."""
    keys = iter(jax.random.split(key, 16))

    def dense(*dims: int, fan: int) -> jax.Array:
        return jax.random.normal(next(keys), dims, jnp.float32) * fan**-0.5

    n, e, h, k, d, f = shape.layers, shape.width, shape.heads, shape.kv_heads, shape.head_dim, shape.hidden
    return {
        "embedding": jax.random.normal(next(keys), (shape.vocab, e)) * 0.02,
        "layers": {
            "norm1": jnp.ones((n, e)),
            "norm2": jnp.ones((n, e)),
            "q": dense(n, e, h, d, fan=e),
            "k": dense(n, e, k, d, fan=e),
            "v": dense(n, e, k, d, fan=e),
            "o": dense(n, h, d, e, fan=e),
            "gate": dense(n, e, f, fan=e),
            "up": dense(n, e, f, fan=e),
            "down": dense(n, f, e, fan=f),
        },
        "norm": jnp.ones((e,)),
        "head": dense(e, shape.vocab, fan=e),
    }


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """RMSNorm over the last axis."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * scale


def rope(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """Rotary embedding, half-split."""
    half = x.shape[-1] // 2
    angles = positions[..., None] * theta ** -(jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attend(q: jax.Array, k: jax.Array, v: jax.Array, allowed: jax.Array) -> jax.Array:
    """Grouped-query attention with a boolean mask that broadcasts to [batch, q, k]."""
    b, t, h, d = q.shape
    kv = k.shape[2]
    grouped = q.reshape(b, t, kv, h // kv, d)
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, k) * d**-0.5
    scores = jnp.where(allowed[:, None, None], scores, -1e30)
    out = jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(scores, -1), v)
    return out.reshape(b, t, h, d)


def block(p: Tree, x: jax.Array, shape: Shape, positions: jax.Array, mix: Any) -> jax.Array:
    """One pre-norm layer; `mix` attends over q, k, v and returns the result (with a cache or without)."""
    y = rms_norm(x, p["norm1"], shape.eps)
    q = rope(jnp.einsum("bte,ehd->bthd", y, p["q"]), positions, shape.theta)
    k = rope(jnp.einsum("bte,ehd->bthd", y, p["k"]), positions, shape.theta)
    v = jnp.einsum("bte,ehd->bthd", y, p["v"])
    x = x + jnp.einsum("bthd,hde->bte", mix(q, k, v), p["o"])
    y = rms_norm(x, p["norm2"], shape.eps)
    return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]


def loss(params: Tree, tokens: jax.Array, shape: Shape) -> jax.Array:
    """Mean next-token cross entropy of [batch, length + 1] tokens."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    length = inputs.shape[1]
    positions = jnp.arange(length)[None].astype(jnp.float32)
    causal = jnp.tril(jnp.ones((length, length), bool))[None]
    x = params["embedding"][inputs]

    def layer(x: jax.Array, p: Tree) -> tuple[jax.Array, None]:
        return block(p, x, shape, positions, lambda q, k, v: attend(q, k, v, causal)), None

    x, _ = jax.lax.scan(layer, x, params["layers"])
    logits = rms_norm(x, params["norm"], shape.eps) @ params["head"]
    chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)


def optimizer() -> optax.GradientTransformation:
    """AdamW with clipping, cosine schedule and weight decay on matrices."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-4, 100, 1000, 3e-5)
    decayed = lambda params: jax.tree.map(lambda p: p.ndim > 1, params)  # noqa: E731
    return optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, b1=0.9, b2=0.95, weight_decay=0.1, mask=decayed)
    )


def train_step(params: Tree, opt: Any, tokens: jax.Array, shape: Shape) -> tuple[Tree, Any, jax.Array]:
    """One update; returns new parameters, optimizer state and the loss before it."""
    value, grads = jax.value_and_grad(loss)(params, tokens, shape)
    updates, opt = optimizer().update(grads, opt, params)
    return optax.apply_updates(params, updates), opt, value


def decode(
    params: Tree, caches: Tree, first: jax.Array, start: jax.Array, count: int, shape: Shape
) -> tuple[jax.Array, Tree]:
    """Greedily decodes `count` tokens from `first` [batch] at position `start`; layers written out, one loop.

    `params["layers"]` is a tuple of per-layer trees and `caches` of (k, v) pairs: on CPU the fastest form.
    """

    def step(i: jax.Array, carry: Any) -> Any:
        token, ids, caches = carry
        at = start + i
        positions = at[None, None].astype(jnp.float32)
        allowed = (jnp.arange(caches[0][0].shape[1]) <= at)[None, None]
        x = params["embedding"][token[:, None]]
        new = []
        for p, (ck, cv) in zip(params["layers"], caches, strict=True):

            def mix(q: jax.Array, k: jax.Array, v: jax.Array, ck: Any = ck, cv: Any = cv) -> jax.Array:
                ck = jax.lax.dynamic_update_slice_in_dim(ck, k, at, 1)
                cv = jax.lax.dynamic_update_slice_in_dim(cv, v, at, 1)
                new.append((ck, cv))
                return attend(q, ck, cv, allowed)

            x = block(p, x, shape, positions, mix)
        logits = (rms_norm(x, params["norm"], shape.eps) @ params["head"])[:, 0]
        token = jnp.argmax(logits, -1).astype(jnp.int32)
        return token, ids.at[:, i].set(token), tuple(new)

    ids = jnp.zeros((first.shape[0], count), jnp.int32)
    _, ids, caches = jax.lax.fori_loop(0, count, step, (first, ids, caches))
    return ids, caches
