"""The distribution passes the kit that strangers' plugins pass."""

from sashimono.testing.plugin import PluginConformance


class TestPlugin(PluginConformance):
    distribution = "sashimono-runtime"
    own_kinds = ("corpora", "model_stores")
