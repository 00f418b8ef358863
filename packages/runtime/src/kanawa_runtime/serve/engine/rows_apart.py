"""Requests of different clients share a batch: no layer may let one row's tokens depend on another's."""

import logging
from collections.abc import Iterator

import kanawa as kn
from kanawa.contracts import CausalLM, FeedForward, TokenDispatcher
from kanawa.errors import UsageError

logger = logging.getLogger(__name__)


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
