"""The shapes that programs are compiled for: ladders of sizes, of which each call takes the smallest that holds it."""

import bisect
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Self, TypeVar

from kanawa.errors import UsageError

from kanawa_runtime.serve.engine.config import EngineConfig

T = TypeVar("T")


def ladder(largest: int, smallest: int, factor: int) -> tuple[int, ...]:
    """Returns smallest, smallest * factor, … up to and with `largest`."""
    sizes, size = [], smallest
    while size < largest:
        sizes.append(size)
        size *= factor
    return (*sizes, largest)


def at_most(sizes: Sequence[int], largest: int) -> tuple[int, ...]:
    """Returns the sizes in order, those above `largest` excluded, and `largest` itself."""
    return tuple(sorted({size for size in sizes if size < largest} | {largest}))


def smallest_holding(sizes: Sequence[int], count: int) -> int:
    """Returns the first of ascending sizes that is at least `count`; the last where none is."""
    return sizes[min(bisect.bisect_left(sizes, count), len(sizes) - 1)]


def grouped(items: Sequence[T], sizes: Sequence[int]) -> Iterator[tuple[Sequence[T], int]]:
    """Yields runs of items, each with the size of the program that takes it; the last one may be larger than its run.

    A large program that would be a quarter empty is replaced by several calls of the next smaller one.
    """
    rest = items
    while rest:
        at = min(bisect.bisect_left(sizes, len(rest)), len(sizes) - 1)
        smaller = sizes[at - 1] if at else 0
        if smaller and sizes[at] - -(-len(rest) // smaller) * smaller >= sizes[at] // 4:
            at -= 1
        yield rest[: sizes[at]], sizes[at]
        rest = rest[sizes[at] :]


@dataclasses.dataclass(frozen=True)
class Shapes:
    """The ladders: rows of a decoding batch, pages of its longest sequence, tokens and number of prompts' chunks."""

    batch_sizes: tuple[int, ...]
    page_widths: tuple[int, ...]
    prefill_sizes: tuple[int, ...]
    prefill_rows: tuple[int, ...] = (1,)

    @property
    def in_tiles(self) -> bool:
        """Whether a program takes several chunks at once, of one prompt or of several."""
        return self.prefill_rows[-1] > 1

    @classmethod
    def of(
        cls, config: EngineConfig, max_length: int, *, has_pages: bool, has_slots: bool = False, any_width: bool = False
    ) -> Self:
        """Returns the config's shapes, or those that waste at most half of the rows and three quarters of the pages.

        `any_width` says that attention reads only pages in use: one width, the widest, is as quick as several, and so
        are few batch sizes, as padding rows cost only their matmuls, which wait for memory. Prompts then come in tiles
        of two pages, several to a program: all its rows write their pages before one reads them, so that tiles of one
        prompt may follow each other in it. With `has_slots` they may not, as a state takes one chunk before the next.
        Raises UsageError where the config asks for it.
        """
        pages = -(-max_length // config.page_size) if has_pages else 1
        chunk = min(config.prefill_tokens, -(-max_length // config.page_size) * config.page_size)
        batches = config.batch_sizes or ladder(config.max_sequences, 1, 8 if any_width else 2)
        widths = config.page_widths or ((pages,) if any_width else ladder(pages, min(8, pages), 4))
        least = min(chunk, config.page_size * (2 if any_width else 1))
        in_tiles = any_width and has_pages and not has_slots and config.prefill_sizes is None
        rows = config.prefill_rows or (_tiles(config, least) if in_tiles else (1,))
        if has_slots and max(rows) > 1:
            message = (
                f"prefill_rows is {list(rows)}, but the model has states of whole sequences, which take one chunk "
                "after the other; leave prefill_rows unset"
            )
            raise UsageError(message)
        sizes = config.prefill_sizes or ((least,) if max(rows) > 1 else ladder(chunk, least, 2))
        sizes = at_most(sizes, chunk) if max(rows) == 1 else (min(*sizes, chunk),)
        return cls(at_most(batches, config.max_sequences), at_most(widths, pages), sizes, tuple(sorted({*rows})))


def _tiles(config: EngineConfig, tile: int) -> tuple[int, ...]:
    """Returns the numbers of tiles of programs: as many as a step has room for, and a quarter of them."""
    most = max(1, (config.max_batched_tokens - config.max_sequences) // tile)
    return tuple(sorted({-(-most // 4), most}))
