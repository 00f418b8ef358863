"""N models that somebody else wrote: recipes over our layers, no two alike, some with parts of their own."""

from loc_complexity.cost import Tree

MODELS = (1, 2, 4, 8, 16, 32)

_OWN_FEED_FORWARD = '''"""A feed-forward that only this package has: two branches, multiplied."""

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.contracts import FeedForward


class TwoBranches(FeedForward):
    """down(silu(left(x)) * tanh(right(x)))."""

    def setup(self):
        """Declares three matrices."""
        cfg = self.config
        for name in ("left", "right"):
            self.add_param(name, (cfg.input_dim, cfg.hidden_dim), axes=("embed", "mlp"))
        self.add_param("down", (cfg.hidden_dim, cfg.input_dim), axes=("mlp", "embed"))

    def forward(self, x, sequences):
        """Returns the transformed tokens."""
        del sequences
        hidden = jax.nn.silu(x @ self.param("left")) * jnp.tanh(x @ self.param("right"))
        return hidden @ self.param("down")
'''

_FEED_FORWARDS = (
    "GatedFeedForward.Config(hidden_dim={hidden})",
    "TwoBranches.Config(hidden_dim={hidden})",
    "PlainFeedForward.Config(hidden_dim={hidden})",
    "MixtureOfExperts.Config(hidden_dim={hidden}, num_experts=2)",
)
_POSITIONS = ("Rotary.Config()", "Rotary.Config(theta=1e6)", "NoPositions.Config()")
_NORMS = ("RMSNorm", "LayerNorm")

_MODEL = '''"""model-{index}: {blurb}."""

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.feedforward.gated import GatedFeedForward
from kanawa_layers.feedforward.plain import PlainFeedForward
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.moe.mixture import MixtureOfExperts
from kanawa_layers.positions.biases import NoPositions
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.stack.residual_blocks import PreNormBlock
from kanawa_layers.stack.repeated import RepeatedStack
from zoo.two_branches import TwoBranches


def model():
    """Returns the config."""
    attention = GroupedQueryAttention.Config(num_heads={heads}, num_kv_heads={kv_heads}, positions={positions})
    block = PreNormBlock.Config(
        attention=attention,
        feed_forward={feed_forward},
        attention_norm={norm}.Config(),
        feed_forward_norm={norm}.Config(),
    )
    return DecoderLM.Config(
        vocab_size=64,
        input_dim={width},
        norm={norm}.Config(),
        stack=RepeatedStack.Config(num_layers={layers}, layer=block),
    )
'''


def zoo(num_models: int) -> dict[str, str]:
    """Returns the package's files."""
    files = {
        "zoo/__init__.py": "",
        "zoo/two_branches.py": _OWN_FEED_FORWARD,
        "zoo/pyproject.toml": _pyproject(num_models),
    }
    for index in range(num_models):
        heads = (2, 4)[index % 2]
        values = {
            "index": index,
            "heads": heads,
            "kv_heads": (1, heads)[index // 2 % 2],
            "positions": _POSITIONS[index % 3],
            "feed_forward": _FEED_FORWARDS[index % 4].format(hidden=24 + 8 * (index % 5)),
            "norm": _NORMS[index // 4 % 2],
            "width": (16, 32)[index // 8 % 2],
            "layers": 2 + index // 16,
        }
        blurb = f"{values['layers']} layers, {values['feed_forward'].partition('.')[0]}, {values['norm']}"
        files[f"zoo/model_{index}.py"] = _MODEL.format(blurb=blurb, **values)
    return files


def _pyproject(num_models: int) -> str:
    lines = ["[project]", 'name = "zoo"', 'version = "1.0"', '[project.entry-points."kanawa.models"]']
    return "\n".join([*lines, *(f'"zoo-{i}" = "zoo.model_{i}:model"' for i in range(num_models))]) + "\n"


def models_of(tree: Tree) -> list[str]:
    """Returns the model files of a tree."""
    return sorted(path for path in tree if path.startswith("zoo/model_"))
