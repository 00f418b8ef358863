"""The page pool against a model of it that keeps sets, under any sequence of takes, shares and releases."""

import hypothesis
import pytest
from hypothesis import stateful
from hypothesis import strategies as st
from kanawa_runtime.serve.engine.page_pool import PagePool, PagePoolError, page_digest, root_digest

TOTAL = 6


class Pools(stateful.RuleBasedStateMachine):
    """Holders take and share pages; the model knows what each holds and which contents were ever written."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(TOTAL)
        self.holders: list[list[int]] = []
        self.contents: dict[int, bytes] = {}

    @stateful.rule()
    def take(self) -> None:
        held = {page for pages in self.holders for page in pages}
        if self.pool.available:
            page = self.pool.allocate()
            assert page not in held
            self.contents.pop(page, None)
            self.holders.append([page])
        else:
            assert len(held) == TOTAL
            with pytest.raises(PagePoolError, match=f"all {TOTAL} pages are used"):
                self.pool.allocate()

    @stateful.precondition(lambda self: self.holders)
    @stateful.rule(which=st.integers(0), content=st.sampled_from("abcd"))
    def describe(self, which: int, content: str) -> None:
        page = self.holders[which % len(self.holders)][0]
        digest = content.encode()
        if page not in self.contents and digest not in self.contents.values():
            self.contents[page] = digest
        self.pool.cache(page, digest)

    @stateful.rule(contents=st.lists(st.sampled_from("abcd"), max_size=4))
    def share(self, contents: list[str]) -> None:
        where = {digest: page for page, digest in self.contents.items()}
        wanted = []
        for content in contents:
            if content.encode() not in where:
                break
            wanted.append(where[content.encode()])
        assert self.pool.find_cached(content.encode() for content in contents) == wanted
        for page in wanted:
            held = any(page in pages for pages in self.holders)
            assert self.pool.is_cached(page) == (not held)
            self.pool.share(page)
            self.holders.append([page])

    @stateful.precondition(lambda self: self.holders)
    @stateful.rule(which=st.integers(0))
    def release(self, which: int) -> None:
        self.pool.free(self.holders.pop(which % len(self.holders)))

    @stateful.rule()
    def forget(self) -> None:
        self.pool.evict_all()
        self.contents.clear()

    @stateful.invariant()
    def balances(self) -> None:
        self.pool.check_counts()
        held = {page for pages in self.holders for page in pages}
        assert self.pool.used == len(held)
        assert self.pool.cached == len(set(self.contents) - held)
        assert self.pool.available + self.pool.used == TOTAL


TestPools = Pools.TestCase
TestPools.settings = hypothesis.settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_what_was_unused_longest_is_given_up_first():
    pool = PagePool(3)
    pages = [pool.allocate() for _ in range(3)]
    for page, content in zip(pages, (b"a", b"b", b"c"), strict=True):
        pool.cache(page, content)
    # The end of a prompt first, so that its beginning is kept longest.
    pool.free(reversed(pages))
    assert pool.allocate() == pages[2]
    assert pool.find_cached([b"a", b"b", b"c"]) == pages[:2]


def test_a_page_released_too_often():
    pool = PagePool(2)
    page = pool.allocate()
    pool.free([page])
    with pytest.raises(PagePoolError, match=f"page {page} was freed more often than it was allocated"):
        pool.free([page])


def test_prefixes_of_other_salts_adapters_and_tokens_differ():
    roots = {root_digest(salt, adapter) for salt in ("", "a", "1:a") for adapter in (None, "", "a")}
    assert len(roots) == 9
    root = root_digest("", None)
    first = page_digest(root, [1, 2])
    assert first == page_digest(root, (1, 2)) != page_digest(root, [2, 1])
    # A page is known by all that comes before it.
    assert page_digest(first, [3, 4]) != page_digest(page_digest(root, [2, 1]), [3, 4])
