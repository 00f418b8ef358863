"""A feed-forward layer, and the modifier that brings it into any model."""

from kanawa.cli.scaffold.kinds import Kind

_LAYER = '''"""$class_name: down(silu(up(x))), a feed-forward to start from."""

import jax
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import FeedForward, Sequences


class $class_name(FeedForward):
    """Two matrices around an activation. Say here what it computes, and which paper has it."""

    class Config(FeedForward.Config):
        # What a checkpoint of others calls the parameters; [out, in] there, [in, out] here.
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={
                "up": kn.foreign.Tensor(name="up_proj.weight", form=kn.foreign.Matrix.Config()),
                "down": kn.foreign.Tensor(name="down_proj.weight", form=kn.foreign.Matrix.Config()),
            }
        )

    def setup(self) -> None:
        """Declares the parameters; sharding, optimizer state and checkpoints follow from their axes."""
        # A child is annotated in the class body (`norm: Norm`) and added here: self.add_child("norm", cfg.norm, …).
        cfg = self.config
        self.add_param("up", (cfg.input_dim, cfg.hidden_dim), axes=("embed", "mlp"))
        self.add_param("down", (cfg.hidden_dim, cfg.input_dim), axes=("mlp", "embed"))

    def forward(self, x: Float[Array, "B T E"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns the transformed tokens in the dtype of `x`."""
        del sequences
        hidden = kn.constrain(jax.nn.silu(x @ self.param("up")), ("batch", "length", "mlp"))
        return kn.constrain(hidden @ self.param("down"), ("batch", "length", "embed"))
'''

_MODIFIER = '''"""`$distribution`: every feed-forward of a model becomes $class_name."""

import kanawa as kn
from kanawa.contracts import FeedForward

from $package.layer import $class_name


class Use$class_name(kn.Modifier):
    """Replaces whatever plays the FeedForward role; `hidden_dim` carries over."""

    class Config(kn.Modifier.Config):
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every feed-forward under `where` replaced."""
        kn.replace(cfg, target=FeedForward, new=$class_name.Config(), where=self.config.where)
        return cfg
'''

_TESTS = '''"""The plugin passes the kit that Kanawa's own packages pass."""

import jax
import kanawa as kn
from kanawa.contracts import FeedForward, Sequences
from kanawa.testing.layer import LayerConformance
from kanawa.testing.modifier import ModifierConformance
from kanawa.testing.plugin import PluginConformance

from $package.layer import $class_name
from $package.modifier import Use$class_name


class Unchanged(FeedForward):
    def forward(self, x, sequences):
        return x


class Model(kn.Module):
    """Has a feed-forward, which is all that the modifier looks for."""

    class Config(kn.Module.Config):
        feed_forward: FeedForward.Config = Unchanged.Config(hidden_dim=16)


class TestPlugin(PluginConformance):
    distribution = "$distribution"


class Test$class_name(LayerConformance):
    def config(self):
        return $class_name.Config(input_dim=8, hidden_dim=16)

    def inputs(self, key):
        return jax.random.normal(key, (2, 4, 8)), Sequences()


class TestUse$class_name(ModifierConformance):
    touches = ("feed_forward", "feed_forward.**")

    def modifier(self):
        return Use$class_name.Config().build()

    def config(self):
        return Model.Config()
'''

KIND = Kind(
    sources={"layer.py": _LAYER, "modifier.py": _MODIFIER},
    entry_points={
        "layers": {"$distribution": "layer:$class_name"},
        "modifiers": {"$distribution": "modifier:Use$class_name"},
    },
    conformance=_TESTS,
    usage="kanawa show quickstart --modify $distribution --diff quickstart\n"
    "kanawa train quickstart --modify $distribution --run runs/$distribution",
)
