"""A modifier: a named rewrite of any experiment's config."""

from sashimono.cli.scaffold.kinds import Kind

_MODIFIER = '''"""`$distribution`: every feed-forward gets `factor` times its hidden size."""

import sashimono as sm
from sashimono.contracts import FeedForward


class $class_name(sm.Modifier):
    """Edits the nodes that play a role, whatever their class; `where` narrows it to some of them."""

    class Config(sm.Modifier.Config):
        factor: int = 2
        where: str = "**"

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with the hidden sizes multiplied."""

        def widen(node: sm.Config) -> None:
            node.set(hidden_dim=node.hidden_dim * self.config.factor)

        sm.replace(cfg, target=FeedForward, edit=widen, where=self.config.where)
        return cfg
'''

_TESTS = '''"""The plugin passes the kit that Sashimono's own packages pass."""

from sashimono.testing.modifier import ModifierConformance
from sashimono.testing.plugin import PluginConformance
from sashimono.testing.tiny import TinyLM

from $package.modifier import $class_name


class TestPlugin(PluginConformance):
    distribution = "$distribution"


class Test$class_name(ModifierConformance):
    touches = ("layer.feed_forward.hidden_dim",)

    def modifier(self):
        return $class_name.Config(factor=3).build()

    def config(self):
        return TinyLM.Config()

    def test_sizes_are_multiplied(self):
        assert self.modifier()(self.config()).layer.feed_forward.hidden_dim == 48
'''

KIND = Kind(
    sources={"modifier.py": _MODIFIER},
    entry_points={"modifiers": {"$distribution": "modifier:$class_name"}},
    conformance=_TESTS,
    usage="sashimono show quickstart --modify $distribution:factor=4 --diff quickstart",
)
