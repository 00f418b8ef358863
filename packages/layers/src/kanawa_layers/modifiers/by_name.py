"""Modifiers that replace every `norm`, `mixer`, `dot-product`, `cache` or `block` by a catalogued one."""

from typing import Any, ClassVar

import kanawa as kn
from kanawa.config import REQUIRED
from kanawa.contracts import Block, Cache, FeedForward, Model, Norm, SequenceMixer
from kanawa.errors import ConfigError, PluginError, UsageError, did_you_mean
from kanawa.plugins import host

from kanawa_layers.attention.dot_product import DotProduct
from kanawa_layers.attention.quantised_cache import QuantisedCache


def component_config(modifier: str, name: str, role: type[kn.Configurable], kind: str = "layers") -> kn.Config:
    """Returns the config of the component `name` of a catalog kind, which fills `role`.

    Raises UnknownNameError for an unknown name, and UsageError, listing those that fill the role, for one that doesn't.
    """
    component = kn.component(kind, name)
    if isinstance(component, type) and issubclass(component, role):
        cfg: kn.Config = component.Config()
        return cfg
    names = [state.name for state in host().components(kind) if state.state.usable and _fills(kind, state.key, role)]
    message = (
        f"{modifier}: {name!r} is {component!r}, which fills no {role.__name__} slot{did_you_mean(name, names)}; "
        f"those that do: {', '.join(names) or 'none installed'}"
    )
    raise UsageError(message)


def _fills(kind: str, name: str, role: type) -> bool:
    try:
        component = kn.component(kind, name)
    except PluginError:
        return False  # Another component that fails to load is not the problem here.
    return isinstance(component, type) and issubclass(component, role)


class RoleByName(kn.Modifier):
    """Replaces every `role` under `where` by the component `kind`; fields of the same name carry over."""

    class Config(kn.Modifier.Config):
        kind: str = kn.REQUIRED
        where: str = "**"

    #: The replaced role, the catalog kind of replacements, and the modifier's name in messages.
    role: ClassVar[type[kn.Configurable]]
    catalog: ClassVar[str] = "layers"
    name: ClassVar[str]

    def new(self) -> kn.Config:
        """Returns the replacement's config."""
        return component_config(self.name, self.config.kind, self.role, self.catalog)

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every such node replaced."""
        kn.replace(cfg, target=self.role, new=self.new(), where=self.config.where)
        return cfg


class NormKind(RoleByName):
    """`norm`: every norm becomes another kind, such as layer-norm; eps, where it was set, carries over."""

    role, name = Norm, "norm"


class DotProductKind(RoleByName):
    """`dot-product`: how scores weigh values, such as sigmoid-dot-product."""

    role, name = DotProduct, "dot-product"


class Mixer(RoleByName):
    """`mixer`: every attention becomes another mixer of sequences, such as gated-delta-net, with `options` set."""

    role, name = SequenceMixer, "mixer"

    class Config(RoleByName.Config):
        options: dict[str, Any] = {}

    def new(self) -> kn.Config:
        """Returns the mixer's config."""
        return super().new().set(**self.config.options)


class CacheKind(RoleByName):
    """`cache`: how keys and values of past tokens are stored; `int8` stores them as codes and scales."""

    role, name, catalog = Cache, "cache", "caches"

    class Config(RoleByName.Config):
        kind: str = "dense"
        int8: bool = False

    def new(self) -> kn.Config:
        """Returns the cache's config."""
        cache: Any = super().new()
        return QuantisedCache.Config(codes=cache, scales=cache) if self.config.int8 else cache

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with all caches replaced; raises ConfigError where no model in it ever decodes."""
        models = [node for _, node in cfg.walk() if node._target is not None and issubclass(node._target, Model)]
        if models and not any(hasattr(node._target, "cache_spec") for node in models):
            kinds = ", ".join(type(node).__qualname__ for node in models)
            message = f"cache: {kinds} reads whole rows and never decodes, so it uses no cache"
            raise ConfigError(message)
        return super().__call__(cfg)


class BlockKind(RoleByName):
    """`block`: every block becomes another kind, such as parallel-block; branches, norms and residuals carry over.

    Norms that only the new kind has are copies of the old block's first.
    """

    role, name = Block, "block"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every block under `where` replaced."""
        kn.replace(cfg, target=Block, new=self._replacement, where=self.config.where)
        return cfg

    def _replacement(self, old: kn.Config) -> kn.Config:
        new = self.new()
        _check_branches(old, new)
        return _with_norms(new, old)


def _check_branches(old: kn.Config, new: kn.Config) -> None:
    """Raises ConfigError where one of the two kinds has a branch that the other lacks."""
    missing = [name for name in new.fields() if vars(new)[name] is REQUIRED and name not in old.fields()]
    branch = (SequenceMixer.Config, FeedForward.Config)
    lost = [name for name in old.fields() if isinstance(getattr(old, name), branch) and name not in new.fields()]
    if missing or lost:
        problems = [f"has no {' and '.join(missing)} for it"] * bool(missing)
        problems += [f"would lose its {' and '.join(lost)}"] * bool(lost)
        kinds = type(old).__qualname__, type(new).__qualname__
        message = f"block: {kinds[0]} can't become {kinds[1]}: it {' and '.join(problems)}"
        raise ConfigError(message)


def _with_norms(block: kn.Config, old: kn.Config) -> kn.Config:
    """Returns `block` with norms that the old one lacked copied from those it had."""
    norms = [value for name in old.fields() if isinstance(value := getattr(old, name), Norm.Config)]
    for name in block.fields():
        if norms and name not in old.fields() and isinstance(getattr(block, name), Norm.Config):
            block.set(**{name: norms[0]})
    return block
