"""Keys and values that several layers share (Brandon et al. 2024, arXiv:2405.12981; YOCO, arXiv:2405.05254).

A slot of attention: one layer offers its keys and values, later ones take them and have no own, and no cache.
"""

import dataclasses
from typing import ClassVar

import jax
import kanawa as kn
from kanawa.contracts import CacheView
from kanawa.errors import ModuleError
from kanawa.kernels import MaskSpec

from kanawa_layers.attention.masks import reach


class KeySharing(kn.Configurable):
    """Whether an attention layer shares its keys and values with other layers; `name` identifies them."""

    class Config(kn.Configurable.Config):
        name: str = "keys"

    #: Whether the layer has no key and value projections and no cache.
    takes: ClassVar[bool] = False


class OfferKeys(KeySharing):
    """Computes keys and values, and offers them to the layers that follow."""


class TakeKeys(KeySharing):
    """Uses the keys and values that an earlier layer offers under the same name."""

    takes = True


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SharedKeys:
    """Keys and values that one layer passes to others, already rotated, and how far back they reach."""

    view: CacheView
    reach: int | None = dataclasses.field(metadata={"static": True})


def takes_keys(sharing: KeySharing.Config | None) -> bool:
    """Returns whether a layer with this slot takes its keys from another."""
    return sharing is not None and sharing.build().takes


def offer_keys(layer: kn.Module, sharing: KeySharing.Config | None, view: CacheView, mask: MaskSpec) -> None:
    """Offers a layer's keys and values, if its slot says so."""
    if sharing is not None:
        layer.offer(sharing.name, SharedKeys(view, reach(mask)))


def taken_keys(layer: kn.Module, sharing: KeySharing.Config, mask: MaskSpec, key_dim: int, num_heads: int) -> CacheView:
    """Returns the keys and values that an earlier layer offers.

    Raises ModuleError where none does, where they aren't `key_dim` wide or their heads don't divide `num_heads`, and
    where this layer's mask reaches further back than they do.
    """
    shared = layer.offered(sharing.name)
    if not isinstance(shared, SharedKeys):
        message = f"{layer.path} takes keys named {sharing.name!r}, but {type(shared).__name__} is offered"
        raise ModuleError(message)
    kv_heads, width = shared.view.k.shape[-2:]
    if width != key_dim or num_heads % kv_heads:
        message = (
            f"{layer.path} takes keys named {sharing.name!r}: they have {kv_heads} heads of width {width}, and this "
            f"layer has {num_heads} query heads of width {key_dim}; layers that share keys need the same sizes"
        )
        raise ModuleError(message)
    # A ring cache has overwritten older keys; training fails early, although there nothing is missing yet.
    wanted = reach(mask)
    if shared.reach is not None and (wanted is None or wanted > shared.reach):
        message = (
            f"{layer.path} sees {'all keys' if wanted is None else f'{wanted} keys back'}, but takes those named "
            f"{sharing.name!r} from a layer that caches {shared.reach}; share between layers of the same mask"
        )
        raise ModuleError(message)
    return shared.view
