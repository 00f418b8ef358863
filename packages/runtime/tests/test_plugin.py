"""The distribution passes the kit that strangers' plugins pass."""

from kanawa.testing.plugin import PluginConformance


class TestPlugin(PluginConformance):
    distribution = "kanawa-runtime"
