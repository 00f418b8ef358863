"""The plugin passes the kit that Sashimono's own packages pass."""

import jax
from sashimono.contracts import Sequences
from sashimono.testing.kernel import KernelConformance
from sashimono.testing.layer import LayerConformance
from sashimono.testing.modifier import ModifierConformance
from sashimono.testing.plugin import PluginConformance
from sashimono.testing.tiny import TinyLM
from sashimono_example_layer.head_by_head import HeadByHead
from sashimono_example_layer.modifier import UseSquaredReLU
from sashimono_example_layer.squared_relu import SquaredReLU


class TestPlugin(PluginConformance):
    distribution = "sashimono-example-layer"


class TestSquaredReLU(LayerConformance):
    def config(self):
        return SquaredReLU.Config(input_dim=8, hidden_dim=16)

    def inputs(self, key):
        return jax.random.normal(key, (2, 4, 8)), Sequences()


class TestModifier(ModifierConformance):
    touches = ("layer.feed_forward", "layer.feed_forward.**")

    def modifier(self):
        return UseSquaredReLU.Config().build()

    def config(self):
        return TinyLM.Config()


class TestHeadByHead(KernelConformance):
    def kernel(self):
        return HeadByHead()
