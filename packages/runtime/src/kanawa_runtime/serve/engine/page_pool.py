"""The pages of the KV cache: reference counts, contents by digest, and the order in which cached pages are evicted."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np
from kanawa.errors import KanawaError


class PagePoolError(KanawaError):
    """The pool's counts are inconsistent, which only a defect of the engine can cause."""


def root_digest(salt: str, adapter: str | None) -> bytes:
    """Returns the digest before the first page: other salts and adapters never share one."""
    named = "" if adapter is None else adapter
    # A cryptographic digest: a client that could make two prompts collide would read another's pages.
    # A salt comes from JSON, which may hold half of a surrogate pair: strict UTF-8 has none.
    text = f"{len(salt)}:{salt}{adapter is not None}{named}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def page_digest(before: bytes, token_ids: Sequence[int], content: bytes = b"") -> bytes:
    """Returns the digest of a page with these tokens after the prefix with digest `before`.

    `content` tells apart what equal ids stand for: pictures.
    """
    return hashlib.sha256(before + np.asarray(token_ids, "<i4").tobytes() + content).digest()


class PagePool:
    """`total` pages, each free, used (by one or more sequences) or cached (unused, its content still known).

    Everything is plain integers and O(1) a page. Contents are known by their digests; the cached page that was unused
    longest is evicted first.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total
        self._digests: list[bytes | None] = [None] * total
        self._pages: dict[bytes, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Pages that could be allocated now."""
        return len(self._free) + len(self._cached)

    @property
    def used(self) -> int:
        """Pages that sequences hold."""
        return self.total - self.available

    @property
    def cached(self) -> int:
        """Unused pages of known content."""
        return len(self._cached)

    def allocate(self) -> int:
        """Returns a page for one sequence to write; raises PagePoolError without one: check `available` first."""
        if self._free:
            page = self._free.pop()
        elif self._cached:
            page, _ = self._cached.popitem(last=False)
            self.evict(page)
        else:
            message = f"all {self.total} pages are used"
            raise PagePoolError(message)
        self._references[page] = 1
        return page

    def find_cached(self, digests: Iterable[bytes]) -> list[int]:
        """Returns the pages of the longest prefix whose contents are known."""
        pages = []
        for digest in digests:
            page = self._pages.get(digest)
            if page is None:
                break
            pages.append(page)
        return pages

    def share(self, page: int) -> None:
        """Counts one more sequence that holds a page of known content."""
        if self._references[page] == 0:
            del self._cached[page]
        self._references[page] += 1

    def is_cached(self, page: int) -> bool:
        """Returns whether a page is unused and of known content: sharing it leaves one page less to allocate."""
        return page in self._cached

    def cache(self, page: int, digest: bytes) -> None:
        """Records the content of a used page; of equal contents the first page stays the one that is found."""
        if self._digests[page] is None and digest not in self._pages:
            self._digests[page] = digest
            self._pages[digest] = page

    def free(self, pages: Iterable[int]) -> None:
        """Counts one sequence less for each page; pass the last page first, so that prefixes are evicted last."""
        for page in pages:
            left = self._references[page] - 1
            if left < 0:
                message = f"page {page} was freed more often than it was allocated"
                raise PagePoolError(message)
            self._references[page] = left
            if left == 0:
                if self._digests[page] is None:
                    self._free.append(page)
                else:
                    self._cached[page] = None

    def evict(self, page: int) -> None:
        """Drops the content of a page; sequences that hold the page continue to."""
        digest, self._digests[page] = self._digests[page], None
        if digest is not None:
            del self._pages[digest]

    def evict_all(self) -> None:
        """Drops all contents: other weights would have computed other ones."""
        self._free += self._cached
        self._cached.clear()
        self._pages.clear()
        self._digests = [None] * self.total

    def check_counts(self) -> None:
        """Raises PagePoolError unless every page is in exactly one place, and every known content at its page."""
        places = [*self._free, *self._cached, *(page for page, count in enumerate(self._references) if count)]
        known = {digest: page for page, digest in enumerate(self._digests) if digest is not None}
        wrong = [
            name
            for name, broken in {
                "free, used and cached pages aren't all": sorted(places) != list(range(self.total)),
                "contents and pages differ": known != self._pages,
                "a free page has a content": any(self._digests[page] is not None for page in self._free),
                "a cached page has none": any(self._digests[page] is None for page in self._cached),
            }.items()
            if broken
        ]
        if wrong:
            message = f"page pool of {self.total}: {'; '.join(wrong)}"
            raise PagePoolError(message)
