"""Pictures in the scheduler and the page pool, without a model."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from kanawa.errors import UsageError
from kanawa_runtime.serve.engine.page_pool import PagePool, page_digest, root_digest
from kanawa_runtime.serve.engine.picture import Picture, content_between, end_of_chunk, placed_pictures
from kanawa_runtime.serve.engine.request import Request, SamplingParams
from kanawa_runtime.serve.engine.scheduler import Scheduler
from kanawa_runtime.serve.engine.sequence import Sequence

PAGE, MARK, TOKENS = 4, 7, 6
PICTURES = [Picture.of(np.full((2, 2, 3), shade, np.uint8)) for shade in range(4)]


def prompt(gaps):
    """Returns ids of so many words before each picture, and after the last one."""
    ids = []
    for place, words in enumerate(gaps):
        ids += [MARK] * (TOKENS if place else 0) + [1] * words
    return tuple(ids)


def sequence(number, gaps, pictures):
    ids = prompt(gaps)
    sampling = SamplingParams(max_tokens=2, temperature=0.0)
    made = Sequence.of(Request(id=str(number), prompt_ids=ids, sampling=sampling), lambda _: None, number, None)
    made.pictures = placed_pictures(ids, pictures, MARK, TOKENS)
    return made


def digests(made):
    before, found = made.root, []
    for first in range(0, len(made.tokens) // PAGE * PAGE, PAGE):
        content = content_between(made.pictures, first, first + PAGE)
        before = page_digest(before, made.tokens[first : first + PAGE], content)
        found.append(before)
    return found


GAPS = st.lists(st.integers(0, 9), min_size=2, max_size=4).filter(lambda gaps: gaps[-1] > 0)


@hypothesis.given(GAPS, st.data())
def test_pages_are_equal_where_all_before_them_is(gaps, data):
    count = len(gaps) - 1
    one, other = ([PICTURES[data.draw(st.integers(0, 3))] for _ in range(count)] for _ in range(2))
    first, second = sequence(0, gaps, one), sequence(1, gaps, other)
    differ = next((p.start for p, q in zip(first.pictures, second.pictures, strict=True) if p[0] != q[0]), 10**9)
    for place, (mine, yours) in enumerate(zip(digests(first), digests(second), strict=True)):
        assert (mine == yours) == ((place + 1) * PAGE <= differ)
    text = Sequence.of(Request(id="t", prompt_ids=prompt(gaps)), lambda _: None, 2, None)
    if len(text.tokens) >= PAGE and first.pictures[0].start < len(text.tokens) // PAGE * PAGE:
        assert digests(first)[-1] != digests(text)[-1]


def test_content_is_that_of_the_part_too():
    """The same ids and picture, a token further: what lies in the page is another part of it."""
    ids = [MARK] * 4
    one, later = (
        placed_pictures([MARK] * TOKENS, PICTURES[:1], MARK, TOKENS)[0]._replace(start=s, stop=s + TOKENS)
        for s in (0, 1)
    )
    root = root_digest("", None)
    assert page_digest(root, ids, content_between([one], 4, 8)) != page_digest(
        root, ids, content_between([later], 4, 8)
    )


@hypothesis.given(st.lists(st.tuples(GAPS, st.integers(0, 3)), min_size=1, max_size=5), st.integers(8, 16))
@hypothesis.settings(deadline=None)
def test_no_chunk_cuts_a_whole_picture(asked, budget):
    work = Scheduler(
        max_sequences=3, max_length=64, page_size=PAGE, pool=PagePool(20), budget=budget, chunk=8, fused_steps=1,
        prefill_sizes=(4, 8), reuses_prefixes=True, has_pages=True, whole_pictures=True,
    )  # fmt: skip
    for number, (gaps, shade) in enumerate(asked):
        work.add(sequence(number, gaps, [PICTURES[shade]] * (len(gaps) - 1)))
    for _ in range(300):
        batch = work.schedule(settled=True)
        for chunk in batch.chunks:
            each, stop = chunk.sequence, chunk.start + chunk.count
            assert chunk.start == each.computed
            assert 0 < chunk.count <= chunk.padded
            assert not any(p.start < stop < p.stop for p in each.pictures)
            # Only a shared prefix ends within one, whose pages have all of it.
            cut = any(p.start < chunk.start < p.stop for p in each.pictures)
            assert not cut or chunk.start == PAGE * (chunk.start // PAGE)
            each.computed = stop
            if chunk.is_last:
                each.tokens.append(99)
            work.cache_full_pages(each)
        for each, count in batch.decode:
            each.computed += count
            each.tokens += [99] * count
        for each in [s for s in work.running if s.generated >= 2]:
            work.remove(each)
        if not work.running and not work.num_waiting:
            break
    else:
        raise AssertionError(work.num_waiting)
    work.pool.check_counts()


def test_where_chunks_end():
    placed = placed_pictures(prompt([3, 2, 1]), PICTURES[:2], MARK, TOKENS)
    assert [(p.start, p.stop) for p in placed] == [(3, 9), (11, 17)]
    ends = {(0, 3): 3, (0, 4): 3, (3, 7): 9, (0, 9): 9, (9, 12): 11, (11, 12): 17, (4, 8): 9, (9, 18): 18}
    assert {key: end_of_chunk(placed, *key) for key in ends} == ends


def test_pixels_that_are_no_picture():
    with pytest.raises(UsageError, match="float32.*expected uint8"):
        Picture.of(np.zeros((2, 2, 3), np.float32))
    assert PICTURES[0].digest != Picture.of(np.zeros((2, 3, 2), np.uint8)).digest
