"""The distribution passes the kit that strangers' plugins pass."""

from sashimono.testing.plugin import PluginConformance


class TestPlugin(PluginConformance):
    distribution = "sashimono-layers"
    own_kinds = ("model_stores", "hf_families")
