"""A Llama written by hand in plain JAX and optax, with nothing of Kanawa: what the framework is measured against."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

Tree = Any


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of the model: by default the workload of the step-overhead benchmark.

    The last four are what a model too large for one device needs: `compute` is the dtype of the layers' maths (fp32
    parameters are cast where they are used), `batch_axis` the mesh axis that activations' rows stay on, `query_block`
    how many queries attend at a time, `loss_block` of how many positions logits exist at a time.
    """

    layers: int = 8
    width: int = 512
    heads: int = 8
    kv_heads: int = 4
    hidden: int = 1536
    vocab: int = 8192
    eps: float = 1e-5
    theta: float = 10_000.0
    compute: str = "float32"
    batch_axis: str | None = None
    query_block: int | None = None
    loss_block: int | None = None

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
    """RMSNorm over the last axis, in fp32."""
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, -1, keepdims=True) + eps) * scale).astype(x.dtype)


def rope(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """Rotary embedding, half-split, in fp32."""
    half = x.shape[-1] // 2
    angles = positions[..., None] * theta ** -(jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def attend(q: jax.Array, k: jax.Array, v: jax.Array, allowed: jax.Array) -> jax.Array:
    """Grouped-query attention with a boolean mask that broadcasts to [batch, q, k]."""
    b, t, h, d = q.shape
    kv = k.shape[2]
    grouped = q.reshape(b, t, kv, h // kv, d)
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, k, preferred_element_type=jnp.float32) * d**-0.5
    scores = jnp.where(allowed[:, None, None], scores, -1e30)
    out = jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(scores, -1).astype(v.dtype), v)
    return out.reshape(b, t, h, d)


def attend_in_blocks(q: jax.Array, k: jax.Array, v: jax.Array, size: int) -> jax.Array:
    """Causal attention of `size` queries at a time: only their scores exist, and are computed again backwards."""
    b, t, h, d = q.shape

    @jax.checkpoint
    def one(item: tuple[jax.Array, jax.Array]) -> jax.Array:
        index, queries = item
        allowed = (index * size + jnp.arange(size))[:, None] >= jnp.arange(t)
        return attend(queries, k, v, allowed[None])

    blocks = jnp.moveaxis(q.reshape(b, t // size, size, h, d), 1, 0)
    return jnp.moveaxis(jax.lax.map(one, (jnp.arange(t // size), blocks)), 0, 1).reshape(b, t, h, d)


def block(p: Tree, x: jax.Array, shape: Shape, positions: jax.Array, mix: Any) -> jax.Array:
    """One pre-norm layer; `mix` attends over q, k, v and returns the result (with a cache or without)."""
    p = {name: x if name.startswith("norm") else x.astype(shape.compute) for name, x in p.items()}
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
    causal = jnp.tril(jnp.ones((length, length), bool))[None] if shape.query_block is None else None

    def kept(x: jax.Array) -> jax.Array:
        axis = shape.batch_axis
        return x if axis is None else jax.lax.with_sharding_constraint(x, jax.sharding.PartitionSpec(axis))

    def mix(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        if shape.query_block is None:
            return attend(q, k, v, causal)
        return attend_in_blocks(q, k, v, shape.query_block)

    def layer(x: jax.Array, p: Tree) -> tuple[jax.Array, None]:
        return kept(block(p, x, shape, positions, mix)), None

    x = kept(params["embedding"].astype(shape.compute)[inputs])
    x, _ = jax.lax.scan(layer, x, params["layers"])
    x = rms_norm(x, params["norm"], shape.eps)
    head = params["head"].astype(shape.compute)
    if shape.loss_block is None:
        return summed_loss(x, head, targets) / targets.size

    @jax.checkpoint
    def some(total: jax.Array, item: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return total + summed_loss(item[0], head, item[1]), None

    def blocks(a: jax.Array) -> jax.Array:
        split = a.reshape(a.shape[0], -1, shape.loss_block, *a.shape[2:])
        return jnp.moveaxis(split, 1, 0)

    return jax.lax.scan(some, jnp.zeros(()), (blocks(x), blocks(targets)))[0] / targets.size


def summed_loss(x: jax.Array, head: jax.Array, targets: jax.Array) -> jax.Array:
    """Cross entropy summed over tokens, fp32."""
    logits = jnp.matmul(x, head, preferred_element_type=jnp.float32)
    chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return jnp.sum(jax.nn.logsumexp(logits, -1) - chosen)


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
