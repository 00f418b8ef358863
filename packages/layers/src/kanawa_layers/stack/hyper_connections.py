"""Hyper-connections on a manifold (mHC): several residual streams, mixed by doubly stochastic matrices.

Legend: B rows, T tokens, N streams, E width of a stream, W = N * E.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.arrays.init import Constant
from kanawa.contracts import Block, CacheState, CausalLM, Sequences, Stack
from kanawa.errors import ConfigError
from kanawa.kernels.matmul import matmul

from kanawa_layers.stack.residual_blocks import OutputNormBlock, PreNormBlock, ResidualBlock, SandwichNormBlock

#: The first logits of a stream's weight on itself: with four streams, 0.999 of the mixing matrix's diagonal.
_STAYS = 8.0


class HyperConnection(kn.Module):
    """The three maps of one branch, from all streams of a token (Xie et al. 2025, arXiv:2512.24880, section 4.1).

    From the streams side by side, normalised to root mean square 1: `read` = sigmoid(…) [B, T, N] weighs the streams
    into the branch's input, `write` = 2 sigmoid(…) [B, T, N] spreads its output over them, and `mix` [B, T, N, N],
    whose rows and columns sum to 1 after `iterations` of Sinkhorn and Knopp, mixes the streams themselves. Each is
    scale * (x @ map) + bias, fp32. At first every stream is nearly what a plain residual stream would be.
    """

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        streams: kn.Size = kn.FROM_PARENT
        iterations: kn.Size = 20
        initial_scale: kn.NonNegative = 0.01
        eps: kn.Epsilon = 1e-6
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"map": "fn", "bias": "base", "scale": "scale"})

    def setup(self) -> None:
        """Declares `map` [W, N * (N + 2)], `bias` [N * (N + 2)] and `scale` [3]."""
        cfg, count = self.config, self.config.streams
        maps = count * (count + 2)
        self.add_param("map", (count * cfg.input_dim, maps), axes=("embed", None))
        fixed: dict[str, Any] = {"axes": (None,), "weight_decay": 0.0}
        self.add_param("bias", (maps,), init=MeanOfStreams(count), **fixed)
        self.add_param("scale", (3,), init=Constant(cfg.initial_scale), **fixed)

    def forward(
        self, x: Float[Array, "B T W"]
    ) -> tuple[Float[Array, "B T N"], Float[Array, "B T N"], Float[Array, "B T N N"]]:
        """Returns `read`, `write` and `mix`, fp32."""
        cfg, count = self.config, self.config.streams
        x32 = x.astype(jnp.float32)
        x32 = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + cfg.eps)
        maps = matmul(x32, self.param("map", jnp.float32), precision="highest")
        scale = jnp.repeat(self.param("scale", jnp.float32), jnp.array([count, count, count * count]), axis=0,
                           total_repeat_length=maps.shape[-1])  # fmt: skip
        maps = maps * scale[None, None] + self.param("bias", jnp.float32)[None, None]
        read, write, mix = jnp.split(maps, [count, 2 * count], axis=-1)
        mix = doubly_stochastic(mix.reshape(*mix.shape[:-1], count, count), cfg.iterations)
        return jax.nn.sigmoid(read), 2.0 * jax.nn.sigmoid(write), mix


@dataclasses.dataclass(frozen=True)
class MeanOfStreams:
    """Biases with which a branch reads the mean of `streams`, writes to each, and each mostly stays itself."""

    streams: int

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: jnp.dtype, fan_in: int, fan_out: int) -> jax.Array:
        """Returns [streams * (streams + 2)]; nothing is random."""
        del key, fan_in, fan_out
        # The inverse sigmoid of 1 / streams; a single stream is read whole.
        read = jnp.full((self.streams,), -math.log(max(self.streams - 1, 1e-9)))
        stays = (_STAYS * jnp.eye(self.streams)).reshape(-1)
        return jnp.concatenate([read, jnp.zeros_like(read), stays]).reshape(shape).astype(dtype)


def doubly_stochastic(logits: Float[Array, "*rows N N"], iterations: int) -> Float[Array, "*rows N N"]:
    """Returns exp(logits) with rows and columns normalised in turn (Sinkhorn and Knopp 1967); columns last."""

    def once(logits: jax.Array, _: None) -> tuple[jax.Array, None]:
        logits = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        return logits - jax.nn.logsumexp(logits, axis=-2, keepdims=True), None

    # A loop: written out, it would be most of a layer's program.
    return jnp.exp(jax.lax.scan(jax.checkpoint(once), logits, length=iterations)[0])


class HyperBlock(ResidualBlock):
    """A block whose branches read and write `streams` residual streams, side by side in [B, T, W]."""

    attention_connection: HyperConnection
    feed_forward_connection: HyperConnection

    class Config(ResidualBlock.Config):
        streams: kn.Size = 4
        attention_connection: HyperConnection.Config = HyperConnection.Config()
        feed_forward_connection: HyperConnection.Config = HyperConnection.Config()

    def setup(self) -> None:
        """Declares every slot, at the width of one stream."""
        cfg = self.config
        for name in cfg.fields():
            slot = getattr(cfg, name)
            if slot is None or isinstance(slot, kn.Module.Config):
                count = {"streams": cfg.streams} if isinstance(slot, HyperConnection.Config) else {}
                self.add_child(name, slot, input_dim=cfg.input_dim // cfg.streams, **count)

    def _mixed(
        self, branch: str, x: Float[Array, "B T W"], sequences: Sequences, cache: CacheState | None
    ) -> tuple[Float[Array, "B T W"], CacheState | None]:
        x, write, u = self._streams(branch, x)
        y, cache = getattr(self, branch)(self._read(branch, u), sequences, cache)
        return self._written(branch, x, write, self.emit(f"{branch}_output", y)), cache

    def _transformed(self, x: Float[Array, "B T W"], sequences: Sequences) -> Float[Array, "B T W"]:
        x, write, u = self._streams("feed_forward", x)
        y = self.emit("feed_forward_output", self.feed_forward(self._read("feed_forward", u), sequences))
        return self.emit("residual_stream", self._written("feed_forward", x, write, y))

    def _streams(self, branch: str, x: Float[Array, "B T W"]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns the mixed streams [B, T, N, E], the weights to write with, and the branch's input [B, T, E]."""
        connection: HyperConnection = getattr(self, f"{branch}_connection")
        read, write, mix = (weights.astype(x.dtype) for weights in connection(x))
        x = x.reshape(*x.shape[:2], self.config.streams, -1)
        return jnp.einsum("btnm,btme->btne", mix, x), write, jnp.einsum("btn,btne->bte", read, x)

    def _written(self, branch: str, x: jax.Array, write: jax.Array, y: jax.Array) -> Float[Array, "B T W"]:
        # The block's own way to add a branch, with its norms and scales, to nothing.
        y = self._join(branch, jnp.zeros_like(y), y)
        return (x + write[..., None] * y[:, :, None]).reshape(*x.shape[:2], -1)


def _with_connections(block: ResidualBlock.Config) -> kn.foreign.Names:
    """Returns the block's foreign names, and those of the connections in DeepSeek-V4."""
    connections = {"attention_connection": "attn_hc", "feed_forward_connection": "ffn_hc"}
    return kn.foreign.Names(children={**block.foreign.children, **connections})


class HyperPreNormBlock(HyperBlock, PreNormBlock):
    """`PreNormBlock` with hyper-connections."""

    class Config(HyperBlock.Config, PreNormBlock.Config):
        foreign: kn.foreign.Names = _with_connections(PreNormBlock.Config())


class HyperOutputNormBlock(HyperBlock, OutputNormBlock):
    """`OutputNormBlock` with hyper-connections."""

    class Config(HyperBlock.Config, OutputNormBlock.Config):
        foreign: kn.foreign.Names = _with_connections(OutputNormBlock.Config())


class HyperSandwichNormBlock(HyperBlock, SandwichNormBlock):
    """`SandwichNormBlock` with hyper-connections."""

    class Config(HyperBlock.Config, SandwichNormBlock.Config):
        foreign: kn.foreign.Names = _with_connections(SandwichNormBlock.Config())


class HyperStack(Stack):
    """Copies the stream `streams` times, runs `stack` over all of them side by side, and returns their mean."""

    stack: Stack

    class Config(Stack.Config):
        num_layers: kn.Size | None = None  # type: ignore[assignment]  # that of the stack
        stack: Stack.Config = kn.REQUIRED
        streams: kn.Size = 4
        foreign: kn.foreign.Names = kn.foreign.Names(children={"stack": ""})

    def setup(self) -> None:
        """Declares the stack, at the width of all streams."""
        self.add_child("stack", self.config.stack, input_dim=self.config.streams * self.config.input_dim)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, caches: Any = None
    ) -> tuple[Float[Array, "B T E"], Any]:
        """Returns the mean of the last streams, and the caches of all layers."""
        streams = self.config.streams
        wide, caches = self.stack(jnp.tile(x, (1, 1, streams)), sequences, caches)
        return jnp.mean(wide.reshape(*x.shape[:2], streams, -1), axis=2), caches

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> Any:
        """Returns the stack's cache layout."""
        return self.stack.cache_spec(rows, length, dtype)

    @kn.nowrap
    def unstacked(self, params: Any) -> Any:
        """Returns the parameters with each layer of the stack separate."""
        return {**params, "stack": self.stack.unstacked(params["stack"])}


_KINDS: dict[type, type] = {
    PreNormBlock.Config: HyperPreNormBlock.Config,
    OutputNormBlock.Config: HyperOutputNormBlock.Config,
    SandwichNormBlock.Config: HyperSandwichNormBlock.Config,
}


class HyperConnections(kn.Modifier):
    """`hyper-connections`: `streams` residual streams in every language model (mHC, arXiv:2512.24880)."""

    class Config(kn.Modifier.Config):
        streams: kn.Size = 4
        iterations: kn.Size = 20

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with stacks and blocks replaced; raises ConfigError for blocks that it doesn't support."""
        streams, connection = self.config.streams, HyperConnection.Config(iterations=self.config.iterations)

        def widen(block: Block.Config) -> Block.Config:
            kind = _KINDS.get(type(block))
            if kind is None:
                known = ", ".join(sorted(kind.__qualname__ for kind in _KINDS))
                message = f"hyper-connections: {type(block).__qualname__} isn't supported; expected one of {known}"
                raise ConfigError(message)
            kept = {name: getattr(block, name) for name in block.fields() if block.is_set(name) and name != "foreign"}
            both = {"attention_connection": connection, "feed_forward_connection": connection}
            new: Block.Config = kind(streams=streams, **both, **kept)
            return new

        def wrap(model: Any) -> None:
            # Edited, not swapped: modifiers of what is inside the blocks may come before or after.
            kn.replace(model.stack, target=Block, edit=widen)
            model.set(stack=HyperStack.Config(stack=model.stack, streams=streams))

        kn.replace(cfg, target=CausalLM, edit=wrap)
        return cfg
