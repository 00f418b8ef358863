"""Four features with M variants each, written as a stranger would: one file and one entry point a variant."""

from dataclasses import dataclass

VARIANTS = (1, 2, 4, 8)

_PARTIAL_ROPE = '''"""Rotary positions on the first half of each head, base {theta}."""

import jax.numpy as jnp
import kanawa as kn
from kanawa.contracts import Positions


class PartialRope(Positions):
    """Turns pairs (i, i + half) of the leading dimensions; the rest carry no position."""

    class Config(Positions.Config):
        theta: float = {theta}.0
        parts: int = 2

    def rotate(self, q, k, positions):
        """Returns queries and keys turned."""
        half = self.config.head_dim // (2 * self.config.parts)
        frequencies = self.config.theta ** -(jnp.arange(half, dtype=jnp.float32) / half)
        angles = (positions[..., None].astype(jnp.float32) * frequencies[None, None])[:, :, None]
        return self._turned(q, angles), self._turned(k, angles)

    def _turned(self, x, angles):
        half, wide = angles.shape[-1], x.astype(jnp.float32)
        first, second, rest = wide[..., :half], wide[..., half : 2 * half], wide[..., 2 * half :]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        turned = [first * cos - second * sin, second * cos + first * sin, rest]
        return jnp.concatenate(turned, axis=-1).astype(x.dtype)


class Modify(kn.Modifier):
    """Gives these positions to every attention."""

    def __call__(self, cfg):
        """Returns the rewritten config."""
        kn.replace(cfg, target=Positions, new=PartialRope.Config())
        return cfg
'''

_NTK_ROPE = '''"""Rotary positions whose base grows with the context: {factor} times as long (NTK-aware)."""

import jax.numpy as jnp
import kanawa as kn
from kanawa.contracts import Positions


class NTKRope(Positions):
    """Turns pairs (i, i + half); the lowest frequency is divided by `factor`, the highest is kept."""

    class Config(Positions.Config):
        theta: float = 10_000.0
        factor: float = {factor}.0

    def rotate(self, q, k, positions):
        """Returns queries and keys turned."""
        cfg, half = self.config, self.config.head_dim // 2
        base = cfg.theta * cfg.factor ** (half / (half - 1))
        frequencies = base ** -(jnp.arange(half, dtype=jnp.float32) / half)
        angles = (positions[..., None].astype(jnp.float32) * frequencies[None, None])[:, :, None]
        return self._turned(q, angles), self._turned(k, angles)

    def _turned(self, x, angles):
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


class Modify(kn.Modifier):
    """Gives these positions to every attention."""

    def __call__(self, cfg):
        """Returns the rewritten config."""
        kn.replace(cfg, target=Positions, new=NTKRope.Config())
        return cfg
'''

_MOE = '''"""A mixture of {experts} experts of which each token takes two: the idea, not a fast kernel."""

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.contracts import FeedForward


class TopTwo(FeedForward):
    """Sum over the two likeliest experts of their weight times down(silu(up(x)))."""

    class Config(FeedForward.Config):
        num_experts: int = {experts}

    def setup(self):
        """Declares router and experts."""
        cfg = self.config
        self.add_param("router", (cfg.input_dim, cfg.num_experts), axes=("embed", None))
        up, down = (cfg.input_dim, cfg.hidden_dim), (cfg.hidden_dim, cfg.input_dim)
        self.add_param("up", (cfg.num_experts, *up), axes=("experts", "embed", "mlp"), fan_in_axes=(1,))
        self.add_param("down", (cfg.num_experts, *down), axes=("experts", "mlp", "embed"), fan_in_axes=(1,))

    def forward(self, x, sequences):
        """Returns the mixture."""
        del sequences
        scores = jax.nn.softmax(x @ self.param("router"))
        weights, chosen = jax.lax.top_k(scores, 2)
        weights = weights / weights.sum(-1, keepdims=True)
        gates = (jax.nn.one_hot(chosen, self.config.num_experts, dtype=x.dtype) * weights[..., None]).sum(-2)
        hidden = jax.nn.silu(jnp.einsum("bte,nem->btnm", x, self.param("up")))
        return jnp.einsum("btnm,nme,btn->bte", hidden, self.param("down"), gates)


class Modify(kn.Modifier):
    """Puts the mixture in place of every feed-forward."""

    def __call__(self, cfg):
        """Returns the rewritten config."""
        kn.replace(cfg, target=FeedForward, new=TopTwo.Config())
        return cfg
'''

_MUON = '''"""Muon with momentum {momentum}, through optax."""

import optax
import kanawa as kn
from kanawa.contracts import Optimizer


class OptaxMuon(Optimizer):
    """Matrices are those with two dimensions past the stacked ones and no vocabulary."""

    class Config(Optimizer.Config):
        momentum: float = {momentum}

    def transformation(self, specs, learning_rate):
        """Returns the transformation."""
        layouts = {{}}
        for path, spec in specs.items():
            axes = tuple(range(spec.num_stacked, len(spec.shape)))
            hidden = len(axes) == 2 and "vocab" not in spec.axes
            layouts[path] = optax.contrib.MuonDimensionNumbers(axes[0], axes[1]) if hidden else None
        muon = optax.contrib.muon(learning_rate, beta=self.config.momentum, muon_weight_dimension_numbers=layouts)
        return optax.named_chain(("muon", muon))


class Modify(kn.Modifier):
    """Makes it the optimizer."""

    def __call__(self, cfg):
        """Returns the rewritten config."""
        kn.replace(cfg, target=Optimizer, new=OptaxMuon.Config())
        return cfg
'''


@dataclass(frozen=True)
class Feature:
    """A feature: its text, a value that tells variants apart, and the role whose nodes it may touch."""

    name: str
    template: str
    role: str
    field: str
    first: float
    step: float

    def variant(self, index: int) -> str:
        """Returns the file of one variant."""
        value = self.first + index * self.step
        return self.template.format(**{self.field: int(value) if value == int(value) else round(value, 3)})


FEATURES = (
    Feature("partial-rope", _PARTIAL_ROPE, "Positions", "theta", 10_000, 5_000),
    Feature("ntk-rope", _NTK_ROPE, "Positions", "factor", 2, 1),
    Feature("top2-moe", _MOE, "FeedForward", "experts", 3, 1),
    Feature("muon", _MUON, "Optimizer", "momentum", 0.9, 0.01),
)
