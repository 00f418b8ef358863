"""Masks as config: which keys a query may attend to, combined with AllOf and AnyOf; each builds a MaskSpec."""

import abc
import functools
import operator

import kanawa as kn
from kanawa.kernels import MaskSpec


class Mask(kn.Configurable):
    """Says which keys a query may see. Segments of packed rows are always separated in addition."""

    @abc.abstractmethod
    def spec(self) -> MaskSpec:
        """Returns the static mask."""


class Causal(Mask):
    """Keys up to the query's own position."""

    def spec(self) -> MaskSpec:
        """Returns key <= query."""
        return MaskSpec(causal=True)


class Bidirectional(Mask):
    """All keys, as in encoders."""

    def spec(self) -> MaskSpec:
        """Returns the full mask."""
        return MaskSpec()


class Window(Mask):
    """Keys at most `left` positions before and `right` after the query; None leaves a side open.

    Beltagy et al. 2020, arXiv:2004.05150. Alone it isn't causal unless `right` is 0.
    """

    class Config(Mask.Config):
        left: kn.Count | None = kn.REQUIRED
        right: kn.Count | None = 0

    def spec(self) -> MaskSpec:
        """Returns the window; causal where `right` is 0, which more kernels know."""
        cfg = self.config
        if cfg.right == 0:
            return MaskSpec(causal=True, window=(cfg.left, None))
        return MaskSpec(window=(cfg.left, cfg.right))


class Chunked(Mask):
    """Earlier keys of the query's own chunk of `size` positions, as in Llama 4's local layers."""

    class Config(Mask.Config):
        size: kn.Size = kn.REQUIRED

    def spec(self) -> MaskSpec:
        """Returns the causal mask within chunks."""
        return MaskSpec(causal=True, chunk=self.config.size)


class PrefixLM(Mask):
    """Causal, but all see the first `Sequences.prefix_lengths` tokens (Raffel et al. 2020, arXiv:1910.10683)."""

    def spec(self) -> MaskSpec:
        """Returns causal-or-prefix."""
        return MaskSpec(causal=True, prefix=True)


class Predicate(Mask):
    """A function of positions, by its name in the catalog's kind `masks`."""

    class Config(Mask.Config):
        name: str = kn.REQUIRED

    def spec(self) -> MaskSpec:
        """Returns the named predicate."""
        return MaskSpec(predicates=(self.config.name,))


class AllOf(Mask):
    """Keys that every one of `masks` allows."""

    class Config(Mask.Config):
        masks: tuple[Mask.Config, ...] = kn.REQUIRED

    def spec(self) -> MaskSpec:
        """Returns the conjunction."""
        result = MaskSpec()
        for mask in self.config.masks:
            result = result & mask.build().spec()
        return result


class AnyOf(Mask):
    """Keys that at least one of `masks` allows."""

    class Config(Mask.Config):
        masks: tuple[Mask.Config, ...] = kn.REQUIRED

        def check(self) -> list[str]:
            """Returns what is wrong with the list."""
            return [] if self.masks else ["masks is empty, expected at least one"]

    def spec(self) -> MaskSpec:
        """Returns the disjunction."""
        specs: list[MaskSpec] = [mask.build().spec() for mask in self.config.masks]
        return functools.reduce(operator.or_, specs)


def narrowed(mask: Mask.Config, window: int | None) -> MaskSpec:
    """Returns the mask's spec, of which only the last `window` keys are left, the query's own included."""
    spec: MaskSpec = mask.build().spec()
    # A window of n counts the query itself, as in Hugging Face's `sliding_window`; `left` counts keys before it.
    return spec if window is None else spec & Window.Config(left=window - 1).build().spec()


def window_problems(mask: Mask.Config, window: int | None) -> list[str]:
    """Returns what is wrong with a window over this mask."""
    if window is None or mask.build().spec().causal:
        return []
    return [f"window {window} narrows a causal mask; use mask=Window.Config(left=…, right=…)"]


def reach(mask: MaskSpec) -> int | None:
    """Returns how many positions back a query sees at most, its own included; None without a bound."""
    if mask.prefix or not mask.causal:
        return None
    # A cache has this many entries: without the query's own, a ring would overwrite a key that is still visible.
    bounds = [] if mask.window is None or mask.window[0] is None else [mask.window[0] + 1]
    if mask.chunk is not None:
        bounds.append(mask.chunk)
    return min(bounds, default=None)
