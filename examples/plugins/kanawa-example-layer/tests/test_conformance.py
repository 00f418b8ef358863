"""The plugin passes the kit that Kanawa's own packages pass."""

import jax
import kanawa as kn
from kanawa.contracts import FeedForward, Sequences
from kanawa.testing.kernel import KernelConformance
from kanawa.testing.layer import LayerConformance
from kanawa.testing.modifier import ModifierConformance
from kanawa.testing.plugin import PluginConformance
from kanawa_example_layer.head_by_head import HeadByHead
from kanawa_example_layer.modifier import UseSquaredReLU
from kanawa_example_layer.squared_relu import SquaredReLU


class Unchanged(FeedForward):
    def forward(self, x, sequences):
        return x


class Model(kn.Module):
    """Has a feed-forward, which is all that the modifier looks for."""

    class Config(kn.Module.Config):
        feed_forward: FeedForward.Config = Unchanged.Config(hidden_dim=16)


class TestPlugin(PluginConformance):
    distribution = "kanawa-example-layer"


class TestSquaredReLU(LayerConformance):
    def config(self):
        return SquaredReLU.Config(input_dim=8, hidden_dim=16)

    def inputs(self, key):
        return jax.random.normal(key, (2, 4, 8)), Sequences()


class TestModifier(ModifierConformance):
    touches = ("feed_forward", "feed_forward.**")

    def modifier(self):
        return UseSquaredReLU.Config().build()

    def config(self):
        return Model.Config()


class TestHeadByHead(KernelConformance):
    def kernel(self):
        return HeadByHead()
