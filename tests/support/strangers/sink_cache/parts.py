"""The first tokens and the newest (Xiao et al. 2024, arXiv:2309.17453): a mask, a cache of just these, a modifier."""

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.contracts import Cache, CacheView, SequenceMixer
from kanawa_layers.attention.masks import AllOf, AnyOf, Causal, Predicate, Window

SINKS = 4
#: The position of an empty entry: after every query, so that causality hides it.
NOWHERE = 2**30


def first_four(q_positions, kv_positions):
    """The mask's predicate: which keys are among the first."""
    return (kv_positions < SINKS) & (q_positions >= 0)


class SinkCache(Cache):
    """Entries 0 to 3 are the first tokens, those after them a ring of the newest `window`."""

    class Config(Cache.Config):
        window: kn.Size = 64

    # Only with the mask below does decoding give what the whole forward gives.
    exact = False

    @kn.nowrap
    def spec(self, rows, length, dtype):
        """Returns the layout: never more than 4 + window entries, however long the sequence gets."""
        cfg = self.config
        size = min(length, SINKS + cfg.window)
        widths = {"keys": cfg.key_dim, "values": cfg.value_dim}
        axes = ("batch", None, "kv_heads", "head_dim")
        return {
            name: kn.ParamSpec((rows, size, cfg.num_kv_heads, width), axes, dtype, kn.zeros)
            for name, width in widths.items()
            if width
        }

    def extend(self, state, k, v, sequences):
        """Returns old entries and new tokens to read, with their positions, and the state with the new ones written."""
        new = {"keys": k} if v is None else {"keys": k, "values": v}
        if v is not None:  # a masked value is multiplied by zero, and zero times NaN is NaN
            finite = jnp.isfinite(v).all(-1, keepdims=True)
            new = {"keys": jnp.where(finite, k, jnp.nan), "values": jnp.where(finite, v, jnp.zeros((), v.dtype))}
        lengths = jnp.zeros((), jnp.int32) if sequences.lengths is None else sequences.lengths
        lengths = jnp.broadcast_to(lengths, k.shape[:1])[:, None]
        slots = jnp.arange(k.shape[0]) if sequences.slots is None else sequences.slots
        size = state["keys"].shape[1]
        ring = max(1, size - SINKS)
        entries = jnp.arange(size)[None]
        newest = lengths - 1 - SINKS
        in_ring = SINKS + newest - (newest - (entries - SINKS)) % ring
        held = jnp.where(entries < SINKS, entries, in_ring)
        there = (held < lengths) & ((entries < SINKS) | (held >= SINKS))
        positions = lengths + jnp.arange(k.shape[1])[None]
        real = jnp.ones(positions.shape, bool) if sequences.segment_ids is None else sequences.segment_ids != 0
        end = jnp.where(real, positions + 1, 0).max(1, keepdims=True)
        # Of tokens that fall on one entry only the last is written: a scatter to one place twice has no winner.
        kept = real & ((positions < SINKS) | (positions >= end - ring))
        at = jnp.where(positions < SINKS, positions, SINKS + (positions - SINKS) % ring)
        at = jnp.where(kept, at, size)
        old = {name: state[name][slots] for name in new}
        write = jax.vmap(lambda row, where, tokens: row.at[where].set(tokens.astype(row.dtype), mode="drop"))
        state = {name: state[name].at[slots].set(write(old[name], at, new[name])) for name in new}
        seen = {name: jnp.concatenate([old[name], new[name].astype(old[name].dtype)], 1) for name in new}
        seen_at = jnp.concatenate([jnp.where(there, held, NOWHERE), jnp.where(real, positions, NOWHERE)], 1)
        return CacheView(state, seen["keys"], seen.get("values"), seen_at)


class UseSinks(kn.Modifier):
    """Gives every attention the mask, and the cache for it."""

    class Config(kn.Modifier.Config):
        window: kn.Size = 64

    def __call__(self, cfg):
        """Returns `cfg` with both set."""
        window = self.config.window
        near = AnyOf.Config(masks=(Window.Config(left=window - 1), Predicate.Config(name="first-four")))
        mask = AllOf.Config(masks=(Causal.Config(), near))
        values = {"mask": mask, "cache": SinkCache.Config(window=window)}
        kn.replace(cfg, target=SequenceMixer, edit=lambda node: node.set(**values) and None)
        return cfg
