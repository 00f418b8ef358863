"""The model as an engine runs it: caches of attention in pages of one pool, caches of whole sequences in slots."""

import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from kanawa.arrays.rules import assign
from kanawa.arrays.shardings import array_sharding
from kanawa.composition.fused import fuse_layers
from kanawa.contracts import Cache, CausalLM, Environment, FeedForward, TokenDispatcher, Weighted
from kanawa.errors import UsageError

from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.output_first import OutputFirst
from kanawa_runtime.serve.engine.slot_cache import SlotCache

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class PagedModel:
    """A model whose caches are pages and slots, and their layout.

    With `outputs_first`, weights are fused and laid out for few rows, which parameters as trained aren't yet.
    `has_pages` is False for models of recurrent layers alone; `has_slots` says that some caches are of a sequence,
    which no other sequence can share.
    """

    model: CausalLM
    cache_spec: Any
    has_pages: bool
    has_slots: bool
    num_pages: int
    page_bytes: int
    outputs_first: bool = False


def paged_model(
    model: CausalLM,
    config: EngineConfig,
    max_length: int,
    dtype: str,
    *,
    bits: bool = False,
    outputs_first: bool = False,
) -> PagedModel:
    """Returns the same model over pages; the parameters are the same too, but for their layout where `outputs_first`.

    `bits`: see the paged cache. `outputs_first` fuses plain weights of the same input, and stores them
    outputs first (`joined`, `OutputFirst`). One slot more than `max_sequences` is for padding rows.
    """
    rows = config.max_sequences + 1
    model = with_rows_apart(model)
    model = _with_outputs_first(model) if outputs_first else model
    one = _with_caches(model, config, 1, bits)
    page_bytes = sum(spec.num_bytes for spec in _leaves(one.cache_spec(rows, max_length, dtype)) if is_paged(spec))
    num_pages = _num_pages(config, max_length, page_bytes)
    paged = _with_caches(model, config, num_pages, bits)
    spec = paged.cache_spec(rows, max_length, dtype)
    leaves = _leaves(spec)
    has_slots = any(not is_paged(leaf) for leaf in leaves)
    return PagedModel(paged, spec, page_bytes > 0, has_slots, num_pages, page_bytes, outputs_first)


def _with_outputs_first(model: CausalLM) -> CausalLM:
    cfg = model.config.clone()
    fuse_layers(cfg)

    def turn(node: Any) -> None:
        if node.form is None:
            node.set(form=OutputFirst.Config())

    kn.replace(cfg, target=Weighted, edit=turn, allow_none=True)
    built: CausalLM = cfg.build()
    return built


def _with_caches(model: CausalLM, config: EngineConfig, num_pages: int, bits: bool) -> CausalLM:
    """Returns the model with pages for its exact caches; others, which pages would change, get a slot a row."""
    cfg = model.config.clone()
    caches = [(path, node) for path, node in cfg.walk() if isinstance(node, Cache.Config)]
    if not caches:
        return model
    # By their names in the catalog: this package never imports the one that brings layers.
    pages = kn.component("caches", "paged", asker="kanawa-runtime").Config(
        page_size=config.page_size, num_pages=num_pages, bits=bits
    )
    inexact = [(path, node) for path, node in caches if not _is_exact(node)]
    if config.int8_cache:
        if inexact:
            path, node = inexact[0]
            message = f"int8_cache would replace the cache of {path} ({_name(node)}), which isn't exact; leave it unset"
            raise UsageError(message)
        pages = kn.component("caches", "quantised", asker="kanawa-runtime").Config(codes=pages, scales=pages)
    paged: list[str] = []
    for path, node in caches:
        if _is_exact(node) and not any(path.startswith(f"{outer}.") for outer in paged):
            cfg.set_path(path, pages.clone())
            paged.append(path)
    for path, node in reversed(inexact):
        # One made of exact caches, such as codes and scales, is the same over pages.
        if not any(inner.startswith(f"{path}.") for inner in paged):
            cfg.set_path(path, SlotCache.Config(rows=node.clone()))
    built: CausalLM = cfg.build()
    return built


def _is_exact(node: Cache.Config) -> bool:
    target: Any = node._target
    return bool(target.exact)


def _name(node: Cache.Config) -> str:
    target: Any = node._target
    return str(target.__name__)


def _num_pages(config: EngineConfig, max_length: int, page_bytes: int) -> int:
    full = -(-max_length // config.page_size)
    wanted = config.num_pages
    if wanted is None and config.cache_bytes is not None and page_bytes:
        wanted = config.cache_bytes // page_bytes
    if wanted is None:
        wanted = config.max_sequences * full
    if wanted < full:
        message = (
            f"the cache has {wanted} pages of {config.page_size} tokens ({page_bytes:,} bytes each), but one sequence "
            f"of max_length {max_length} takes {full}; raise num_pages or cache_bytes, or lower max_length"
        )
        raise kn.KanawaError(message)
    return wanted


def _is_spec(node: Any) -> bool:
    return isinstance(node, kn.ParamSpec)


def _leaves(spec: Any) -> list[kn.ParamSpec]:
    return jax.tree.leaves(spec, is_leaf=_is_spec)


def is_paged(spec: kn.ParamSpec) -> bool:
    """Returns whether an array of a cache is pages."""
    return bool(spec.axes) and spec.axes[0] == "pages"


def cache_shardings(spec: Any, environment: Environment) -> Any:
    """Returns the sharding of each cache array: key heads over the mesh as the plan's rules have it; None without.

    Arrays that the mesh doesn't divide are whole on every device, which is said: it costs memory, not tokens.
    """
    mesh, rules = environment.mesh, environment.plan.activation_rules
    if not isinstance(mesh, Mesh):
        return jax.tree.map(lambda _: None, spec, is_leaf=_is_spec)
    whole: list[kn.ParamSpec] = []

    def one(leaf: kn.ParamSpec) -> NamedSharding:
        # Slots aren't spread: their number is one more than the sequences', which no mesh divides.
        axes = tuple(None if axis in ("batch", "pages") else axis for axis in leaf.axes)
        try:
            sharding = array_sharding(leaf.shape, axes, rules, mesh, "cache")
        except kn.KanawaError:
            sharding = NamedSharding(mesh, PartitionSpec())
        # A single head counts too: nothing of it could be split.
        if sharding.is_fully_replicated and any(assign(axes, rules, mesh.shape)):
            whole.append(leaf)
        return sharding

    placed = jax.tree.map(one, spec, is_leaf=_is_spec)
    if whole:
        logger.warning(
            "%d of %d arrays of the cache, %s bytes, are whole on every device: the mesh %s doesn't divide %s; fewer "
            "tensor shards, at most one a key head, would share them",
            len(whole), len(_leaves(spec)), f"{sum(leaf.num_bytes for leaf in whole):,}", dict(mesh.shape),
            dict(zip(whole[0].axes, whole[0].shape, strict=True)),
        )  # fmt: skip
    return placed


def empty_caches(spec: Any, shardings: Any) -> Any:
    """Returns caches of zeros on their devices."""

    def one(leaf: kn.ParamSpec, sharding: Any) -> jax.Array:
        return jnp.zeros(leaf.shape, leaf.dtype, device=sharding)

    structure: Any
    leaves, structure = jax.tree.flatten(spec, is_leaf=_is_spec)
    placed = structure.flatten_up_to(shardings)
    return structure.unflatten([one(leaf, sharding) for leaf, sharding in zip(leaves, placed, strict=True)])


def with_rows_apart(model: CausalLM) -> CausalLM:
    """Returns the model with dispatchers that may drop tokens replaced by their mixtures' default, which drop none.

    Parameters stay as they are. Raises UsageError for what has no such replacement.
    """
    cfg, replaced = model.config.clone(), set()
    for path, node in _dependent(model, ""):
        mixture, _, slot = path.rpartition(".")
        name = type(node).__name__
        # A module's path is its config's, and a mixture's default is a dispatcher that suits it.
        default = type(cfg.get(mixture))().get(slot) if isinstance(node, TokenDispatcher) else None
        if not isinstance(default, TokenDispatcher.Config) or isinstance(default, type(node.config)):
            message = (
                f"this model can't be served: in {path} (a {name}) the output of a token depends on other tokens of "
                "its batch, so that one request would change another's answer; take another kind of mixture"
            )
            raise UsageError(message)
        cfg.set_path(path, default)
        replaced.add(name)
    if not replaced:
        return model
    logger.warning(
        "served without capacity: %s may drop tokens for others of their batch, so the mixture's default dispatcher "
        "replaces it, which drops none; answers differ from training where it would have dropped some",
        ", ".join(sorted(replaced)),
    )
    built: CausalLM = cfg.build()
    return built


def _dependent(module: kn.Module, path: str) -> Iterator[tuple[str, kn.Module]]:
    """Yields path and module of everything by which tokens of a batch depend on each other."""
    if isinstance(module, FeedForward | TokenDispatcher) and module.depends_on_batch:
        yield path, module
    for name, child in module.children.items():
        yield from _dependent(child, f"{path}.{name}" if path else name)
