"""A modifier: a named rewrite of any experiment's config."""

from kanawa.cli.scaffold.kinds import Kind

_MODIFIER = '''"""`$distribution`: every feed-forward gets `factor` times its hidden size."""

import kanawa as kn
from kanawa.contracts import FeedForward


class $class_name(kn.Modifier):
    """Edits the nodes that play a role, whatever their class; `where` narrows it to some of them."""

    class Config(kn.Modifier.Config):
        factor: int = 2
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the hidden sizes multiplied."""

        def widen(node: kn.Config) -> None:
            node.set(hidden_dim=node.hidden_dim * self.config.factor)

        kn.replace(cfg, target=FeedForward, edit=widen, where=self.config.where)
        return cfg
'''

_TESTS = '''"""The plugin passes the kit that Kanawa's own packages pass."""

import kanawa as kn
from kanawa.contracts import FeedForward
from kanawa.testing.modifier import ModifierConformance
from kanawa.testing.plugin import PluginConformance

from $package.modifier import $class_name


class Unchanged(FeedForward):
    def forward(self, x, sequences):
        return x


class Model(kn.Module):
    """Has a feed-forward, which is all that the modifier looks for."""

    class Config(kn.Module.Config):
        feed_forward: FeedForward.Config = Unchanged.Config(hidden_dim=16)


class TestPlugin(PluginConformance):
    distribution = "$distribution"


class Test$class_name(ModifierConformance):
    touches = ("feed_forward.hidden_dim",)

    def modifier(self):
        return $class_name.Config(factor=3).build()

    def config(self):
        return Model.Config()

    def test_sizes_are_multiplied(self):
        assert self.modifier()(self.config()).feed_forward.hidden_dim == 48
'''

KIND = Kind(
    sources={"modifier.py": _MODIFIER},
    entry_points={"modifiers": {"$distribution": "modifier:$class_name"}},
    conformance=_TESTS,
    usage="kanawa show quickstart --modify $distribution:factor=4 --diff quickstart",
)
