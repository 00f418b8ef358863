"""Who holds which page of the cache: reference counts, pages of known content, and the order they are given up in."""

from collections import OrderedDict
from collections.abc import Iterable

from kanawa.errors import KanawaError


class PagePoolError(KanawaError):
    """The pool's own books don't balance, which only a defect of the engine can cause."""


class PagePool:
    """`total` pages, each free, used (by one or more sequences) or cached (used by none, its content still known).

    Everything is plain integers and O(1) a page. A content is known by a digest; cached pages are given up longest
    unused first.
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
        """Pages that could be taken now."""
        return len(self._free) + len(self._cached)

    @property
    def used(self) -> int:
        """Pages that sequences hold."""
        return self.total - self.available

    @property
    def cached(self) -> int:
        """Pages that nobody holds and whose content is known."""
        return len(self._cached)

    def take(self) -> int:
        """Returns a page for one sequence to write, or raises PagePoolError: ask `available` first."""
        if self._free:
            page = self._free.pop()
        elif self._cached:
            page, _ = self._cached.popitem(last=False)
            self._forget(page)
        else:
            message = f"all {self.total} pages are used"
            raise PagePoolError(message)
        self._references[page] = 1
        return page

    def known(self, digests: Iterable[bytes]) -> list[int]:
        """Returns the pages of the longest run of contents from the first on that the pool knows."""
        pages = []
        for digest in digests:
            page = self._pages.get(digest)
            if page is None:
                break
            pages.append(page)
        return pages

    def share(self, page: int) -> None:
        """Counts one more sequence that holds the page, which had a known content."""
        if self._references[page] == 0:
            del self._cached[page]
        self._references[page] += 1

    def is_cached(self, page: int) -> bool:
        """Returns whether nobody holds this page of known content: sharing it takes it from what is available."""
        return page in self._cached

    def describe(self, page: int, digest: bytes) -> None:
        """Says what a used page holds from now on; of equal contents the first page stays the one that is found."""
        if self._digests[page] is None and digest not in self._pages:
            self._digests[page] = digest
            self._pages[digest] = page

    def release(self, pages: Iterable[int]) -> None:
        """Counts one sequence less for each page; give the last page first, so that beginnings are kept longest."""
        for page in pages:
            left = self._references[page] - 1
            if left < 0:
                message = f"page {page} was released more often than it was taken"
                raise PagePoolError(message)
            self._references[page] = left
            if left == 0:
                if self._digests[page] is None:
                    self._free.append(page)
                else:
                    self._cached[page] = None

    def forget(self) -> None:
        """Forgets all contents: other weights would have written others."""
        for page in list(self._cached):
            self._forget(page)
            self._free.append(page)
        self._cached.clear()
        self._pages.clear()
        self._digests = [None] * self.total

    def forget_page(self, page: int) -> None:
        """Forgets what a used page holds; whoever shares it keeps it."""
        self._forget(page)

    def _forget(self, page: int) -> None:
        digest, self._digests[page] = self._digests[page], None
        if digest is not None:
            del self._pages[digest]

    def check(self) -> None:
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
