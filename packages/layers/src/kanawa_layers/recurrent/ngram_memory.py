"""N-gram memory: tables of vectors that a token looks up by the last few tokens, at chosen layers (Engram).

Legend: B rows, T tokens, E width of the stream, G tables (orders times heads).
"""

from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float, Int
from kanawa.contracts import Block, CacheState, CausalLM, Norm, Sequences
from kanawa.errors import ConfigError

from kanawa_layers.basic.embedding import Embedding
from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.recurrent.causal_conv import CausalConv, entering, leaving, marks
from kanawa_layers.stack.chained import ChainedStack
from kanawa_layers.stack.pattern import PatternStack
from kanawa_layers.stack.repeated import RepeatedStack

#: The name under which `ReportingEmbedding` offers token ids to layers.
_TOKENS = "token ids"


class ReportingEmbedding(Embedding):
    """An embedding that lets later layers read the token ids."""

    class Config(Embedding.Config):
        pass

    def forward(self, input_ids: Int[Array, "B T"]) -> Float[Array, "B T E"]:
        """Returns the rows, and offers the ids."""
        self.offer(_TOKENS, input_ids)
        return super().forward(input_ids)


class NGramMemory(kn.Module):
    """gate * value + silu(conv(norm(gate * value))), of vectors looked up by the last 2, 3, … tokens.

    Each of `orders` (how many tokens, the current one included) has `heads` tables of `table_size` vectors of width
    `width`; a multiplicative hash with exclusive or, other for each table, gives the row. All vectors of a token, side
    by side, are projected to a key and a value; gate = sigmoid(norm(x) . norm(key) / sqrt(E)) (Cheng et al. 2026,
    arXiv:2601.07372, section 2). Here the convolution isn't dilated, and ids are hashed as they are, without merging
    those of equal text. Tokens before a segment or a row count as one more id.
    """

    key: Linear
    value: Linear
    query_norm: Norm
    key_norm: Norm
    conv_norm: Norm
    conv: CausalConv

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        orders: tuple[kn.Size, ...] = (2, 3)
        heads: kn.Size = 4
        table_size: kn.Size = 65_536
        width: kn.Size = 64
        seed: kn.Count = 0
        key: Linear.Config = Linear.Config()
        value: Linear.Config = Linear.Config()
        query_norm: Norm.Config = RMSNorm.Config()
        key_norm: Norm.Config = RMSNorm.Config()
        conv_norm: Norm.Config = RMSNorm.Config()
        conv: CausalConv.Config = CausalConv.Config(bias=False, init_scale=0.0)
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"table": "multi_head_embedding.embedding.weight"},
            children={
                "key": "key_proj",
                "value": "value_proj",
                "query_norm": "norm2",
                "key_norm": "norm1",
                "conv_norm": "short_conv.norm",
                "conv": "short_conv.conv",
            },
        )

        def check(self) -> list[str]:
            """Returns what is wrong with the orders."""
            return [] if self.orders and min(self.orders) > 1 else [f"orders is {self.orders}, expected 2 or more each"]

    def setup(self) -> None:
        """Declares `table` [G * table_size, width], which never decays, and the projections."""
        cfg, width = self.config, self.config.input_dim
        tables = len(cfg.orders) * cfg.heads
        self.lags = max(cfg.orders) - 1
        self.add_param(
            "table",
            (tables * cfg.table_size, cfg.width),
            axes=("vocab", "embed"),
            init=kn.normal(0.02),
            fan_in_axes=(1,),
            fan_out_axes=(0,),
            weight_decay=0.0,
        )
        for name in ("key", "value"):
            add_linear(self, name, tables * cfg.width, width, (None, "embed"))
        for name in ("query_norm", "key_norm", "conv_norm"):
            self.add_child(name, getattr(cfg, name), input_dim=width)
        self.add_child("conv", cfg.conv, channels=width, axis="embed")

    def forward(
        self,
        x: Float[Array, "B T E"],
        token_ids: Int[Array, "B T"],
        sequences: Sequences,
        cache: CacheState | None = None,
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns what the memory adds to the stream, and the cache with the last tokens of each row."""
        old, segments = entering(cache, sequences, self.path), marks(sequences)
        # 0 is no token: what an empty cache holds.
        ids = token_ids.astype(jnp.int32) + 1
        if segments is not None:
            ids = jnp.where(segments.real, ids, 0)
        before = old.get("tokens", jnp.zeros((ids.shape[0], self.lags), jnp.int32))
        recent = jnp.concatenate([before, ids], axis=1)
        rows = self._rows(recent, None if segments is None else segments.resets)
        found = jnp.take(self.param("table"), rows, axis=0).reshape(*ids.shape, -1)
        key, value = self.key_norm(self.key(found)), self.value(found)
        score = jnp.sum(self.query_norm(x).astype(jnp.float32) * key.astype(jnp.float32), axis=-1, keepdims=True)
        y = value * jax.nn.sigmoid(score * x.shape[-1] ** -0.5).astype(value.dtype)
        convolved, tail = self.conv(self.conv_norm(y), segments, old.get("tail"))
        count = jnp.full(ids.shape[:1], ids.shape[1]) if segments is None else jnp.sum(segments.real, axis=1)
        places = count[:, None] + jnp.arange(self.lags)[None]
        carried = {"tokens": jnp.take_along_axis(recent, places, axis=1), "tail": tail}
        return y + jax.nn.silu(convolved), leaving(cache, carried, sequences)

    def _rows(self, recent: Int[Array, "B lags_plus_T"], resets: Int[Array, "B T"] | None) -> Int[Array, "B T G"]:
        """Returns the row of each table that each token looks up."""
        cfg, length = self.config, recent.shape[1] - self.lags
        if resets is not None:
            resets = jnp.pad(resets, ((0, 0), (self.lags, 0)))
        tokens = []
        for lag in range(self.lags + 1):
            window = slice(self.lags - lag, self.lags - lag + length)
            token = recent[:, window]
            if resets is not None:
                token = jnp.where(resets[:, window] == resets[:, self.lags :], token, 0)
            tokens.append(token.astype(jnp.uint32))
        multipliers = _multipliers(cfg.seed, len(cfg.orders) * cfg.heads, self.lags + 1)
        rows = []
        for table, factors in enumerate(multipliers):
            mixed = jnp.zeros_like(tokens[0])
            for token, factor in zip(tokens[: cfg.orders[table // cfg.heads]], factors, strict=False):
                mixed ^= token * factor
            # The low bits of a product depend on low bits only.
            mixed = (mixed ^ (mixed >> 15)) * np.uint32(0x2C1B3C6D)
            mixed = (mixed ^ (mixed >> 12)) % np.uint32(cfg.table_size)
            rows.append(mixed.astype(jnp.int32) + table * cfg.table_size)
        return jnp.stack(rows, axis=-1)

    @kn.nowrap
    def cache_spec(self, rows: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layout of each row's last token ids, from 1, and of the convolution's tail."""
        tokens = kn.ParamSpec((rows, self.lags), ("batch", None), "int32", kn.zeros)
        return {"tokens": tokens, "tail": self.conv.tail_spec(rows, dtype)}

    @kn.nowrap
    def idle_parameters(self) -> int:
        """Returns the rows of the tables that a token doesn't look up."""
        cfg = self.config
        return int(len(cfg.orders) * cfg.heads * (cfg.table_size - 1) * cfg.width)


def _multipliers(seed: int, tables: int, tokens: int) -> Any:
    """Returns odd uint32 factors [tables, tokens], the same on every machine."""
    # SplitMix64's sequence (Steele et al. 2014), in wrapping arithmetic.
    state = np.arange(1, tables * tokens + 1, dtype=np.uint64) + np.uint64(seed * tables * tokens)
    with np.errstate(over="ignore"):
        z = state * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))).astype(np.uint32) | np.uint32(1)).reshape(tables, tokens)


class MemoryBlock(Block):
    """`block` of the stream plus what an n-gram memory adds to it; the model's embedding must report token ids."""

    block: Block
    memory: NGramMemory

    class Config(Block.Config):
        block: Block.Config = kn.REQUIRED
        memory: NGramMemory.Config = NGramMemory.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(children={"block": "", "memory": "engram"})

    def setup(self) -> None:
        """Declares both."""
        for name in ("block", "memory"):
            self.add_child(name, getattr(self.config, name), input_dim=self.config.input_dim)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the block's stream, and both caches."""
        own, inner = (None, None) if cache is None else (cache["memory"], cache["block"])
        found, own = self.memory(x, self.offered(_TOKENS), sequences, own)
        x, inner = self.block(x + self.emit("memory_output", found), sequences, inner)
        return x, None if cache is None else {"memory": own, "block": inner}

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, Any]:
        """Returns the layouts of the memory's last tokens and of the block's cache."""
        return {
            "memory": self.memory.cache_spec(rows, dtype),
            "block": self.block.cache_spec(rows, length, dtype),
        }


class NGramMemories(kn.Modifier):
    """`ngram-memory`: hashed tables of n-grams before some `layers` of each model, counted from 0; see `NGramMemory`.

    A stack becomes a chain, so parameters of its layers get other paths.
    """

    class Config(kn.Modifier.Config):
        layers: tuple[kn.Count, ...] = (1,)
        orders: tuple[kn.Size, ...] = (2, 3)
        heads: kn.Size = 4
        table_size: kn.Size = 65_536
        width: kn.Size = 64

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with memories; raises ConfigError for a stack of another kind, or that has no such layer."""
        own = self.config
        memory = NGramMemory.Config(orders=own.orders, heads=own.heads, table_size=own.table_size, width=own.width)

        def edit(model: Any) -> None:
            layers, total = set(own.layers), _num_layers(model.stack)
            if max(layers, default=0) >= total:
                message = f"ngram-memory: layers {own.layers} of a model of {total} layers, counted from 0"
                raise ConfigError(message)
            parts = _parts(model.stack, memory, layers, 0)
            model.set(stack=ChainedStack.Config(stacks=tuple(parts), input_dim=model.stack.input_dim))
            kn.replace(model, target=Embedding, new=ReportingEmbedding.Config(), where="embedding")

        kn.replace(cfg, target=CausalLM, edit=edit)
        return cfg


def _num_layers(stack: Any) -> int:
    if isinstance(stack, ChainedStack.Config):
        return sum(_num_layers(part) for part in stack.stacks)
    count: int = stack.num_layers
    return count


def _parts(stack: Any, memory: NGramMemory.Config, layers: set[int], first: int) -> list[Any]:
    """Returns the stack, which begins at layer `first`, cut so that each of `layers` stands alone, with a memory."""
    if isinstance(stack, ChainedStack.Config):
        parts = []
        for part in stack.stacks:
            parts += _parts(part, memory, layers, first)
            first += _num_layers(part)
        return parts
    chosen = {layer - first for layer in layers} & set(range(stack.num_layers))
    if not chosen:
        return [stack]
    # Of a subclass it isn't known what else counts its layers.
    if type(stack) not in (RepeatedStack.Config, PatternStack.Config):
        message = f"ngram-memory: {type(stack).__qualname__} isn't supported; expected RepeatedStack or PatternStack"
        raise ConfigError(message)
    cuts = sorted({0, *chosen, *(layer + 1 for layer in chosen), stack.num_layers})
    return [_part(stack, a, b, memory if a in chosen else None) for a, b in zip(cuts, cuts[1:], strict=False)]


def _part(stack: Any, start: int, stop: int, memory: NGramMemory.Config | None) -> Any:
    """Returns a stack of some of the layers, before the first of which is a memory."""
    pattern = stack.pattern if isinstance(stack, PatternStack.Config) else (stack.layer,)
    blocks = [pattern[i % len(pattern)] for i in range(start, min(stop, start + len(pattern)))]
    if memory is not None:
        blocks[0] = MemoryBlock.Config(block=blocks[0], memory=memory)
    part = stack.clone()
    if isinstance(stack, PatternStack.Config):
        return part.set(num_layers=stop - start, pattern=tuple(blocks))
    return part.set(num_layers=stop - start, layer=blocks[0])
