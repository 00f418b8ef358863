"""The scheduler by itself: no device, no threads; steps are taken as if their results came at once."""

import collections

import hypothesis
import numpy as np
from hypothesis import strategies as st
from kanawa_runtime.serve.engine.page_pool import PagePool
from kanawa_runtime.serve.engine.request import Request, SamplingParams
from kanawa_runtime.serve.engine.rows import PAGES, SLOT
from kanawa_runtime.serve.engine.scheduler import Scheduler
from kanawa_runtime.serve.engine.sequence import Sequence

PAGE, LENGTH = 4, 32


def scheduler(pages=16, sequences=3, budget=16, fused=1, short=None, chunks=None):
    return Scheduler(
        max_sequences=sequences, max_length=LENGTH, page_size=PAGE, pool=PagePool(pages), budget=budget, chunk=8,
        fused_steps=fused, prefill_sizes=(4, 8), reuses_prefixes=True, has_pages=True, short_budget=short,
        most_chunks=chunks,
    )  # fmt: skip


def sequence(number, length, *, new=4, priority=0, start=0, client="", weight=1):
    prompt = tuple(range(start, start + length))
    sampling = SamplingParams(max_tokens=new, temperature=0.0)
    request = Request(
        id=str(number), prompt_ids=prompt, sampling=sampling, priority=priority, client=client, weight=weight
    )
    return Sequence.of(request, lambda _: None, number, None)


def take(work, batch):
    """Does what the engine does with a batch whose results come at once; returns who has ended."""
    for chunk in batch.chunks:
        chunk.sequence.computed = chunk.start + chunk.count
        if chunk.is_last:
            chunk.sequence.tokens.append(99)
        work.cache_full_pages(chunk.sequence)
    for each, count in batch.decode:
        each.computed += count
        each.tokens += [99] * count
        work.cache_full_pages(each)
    ended = [s for s in list(work.running) if s.generated >= s.request.sampling.max_tokens]
    for each in ended:
        work.remove(each)
    return ended


def finished_in_order(work):
    order = []
    for _ in range(500):
        batch = work.schedule(settled=True)
        order += take(work, batch)
        if not work.running and not work.num_waiting:
            return [int(each.request.id) for each in order]
    raise AssertionError([len(work.running), work.num_waiting])


def test_decoding_comes_first_and_prompts_get_the_rest_of_the_budget():
    work = scheduler(budget=9)
    work.add(sequence(0, 3))
    take(work, work.schedule(settled=True))
    work.add(sequence(1, 20, start=50))
    batch = work.schedule(settled=True)
    assert [(each.request.id, count) for each, count in batch.decode] == [("0", 1)]
    assert [(chunk.start, chunk.count, chunk.is_last) for chunk in batch.chunks] == [(0, 8, False)]
    take(work, batch)
    batch = work.schedule(settled=True)
    assert [(chunk.start, chunk.count, chunk.is_last) for chunk in batch.chunks] == [(8, 8, False)]


def test_lower_priority_numbers_go_first_and_the_newest_is_preempted():
    work = scheduler(sequences=1)
    for number, priority in enumerate((1, 0, 1, 0)):
        work.add(sequence(number, 3, priority=priority, start=10 * number))
    assert finished_in_order(work) == [1, 3, 0, 2]
    work = scheduler(pages=8, sequences=3)
    for number in range(3):
        work.add(sequence(number, 7, new=12, start=50 * number))
    assert finished_in_order(work) == [0, 1, 2]
    assert work.preemptions > 0
    work.pool.check_counts()
    assert work.pool.used == 0


def test_the_pages_of_a_beginning_are_shared_but_never_the_last_token():
    work = scheduler()
    first, second = sequence(0, 12), sequence(1, 12)
    work.add(first)
    take(work, work.schedule(settled=True))
    work.add(second)
    batch = work.schedule(settled=True)
    # Three pages are full, yet somebody has to compute what follows the last token.
    assert (batch.chunks[0].start, batch.chunks[0].count) == (8, 4)
    assert second.pages[:2] == first.pages[:2]
    assert second.pages[2] != first.pages[2]
    assert (second.cached_tokens, work.prefix_hits, work.prefix_queries) == (8, 8, 24)
    assert work.table[second.slot, PAGES : PAGES + 3].tolist() == second.pages


def test_several_steps_are_fused_only_while_nobody_waits_or_samples():
    work = scheduler(fused=4)
    work.add(sequence(0, 3, new=10))
    take(work, work.schedule(settled=True))
    batch = work.schedule(settled=True)
    assert (batch.steps, batch.decode[0][1]) == (4, 4)
    for number in (1, 2, 3):
        work.add(sequence(number, 3, start=20 * number))
    assert work.schedule(settled=True).steps == 1


def test_calls_are_short_where_a_slot_is_free_or_about_to_be():
    work = scheduler(fused=4, sequences=2)
    work.open_steps = 2
    first, second = sequence(0, 3, new=4), sequence(1, 3, new=20, start=20)
    work.add(first)
    take(work, work.schedule(settled=True))
    assert work.schedule(settled=True).steps == 2
    work.add(second)
    take(work, work.schedule(settled=True))
    assert work.schedule(settled=False).steps == 4
    # All that the first may gain is being computed: its slot is free once that is read.
    first.pending = 4 - first.generated
    assert work.schedule(settled=False).steps == 2


def test_pages_that_run_out_wait_for_what_is_being_computed():
    work = scheduler(pages=8, sequences=2)
    for number in range(2):
        work.add(sequence(number, 12, new=12, start=50 * number))
    take(work, work.schedule(settled=True))
    for _ in range(20):
        batch = work.schedule(settled=False)
        if batch.is_starved:
            break
        take(work, batch)
    assert batch.is_starved
    assert work.preemptions == 0
    assert len(work.running) == 2
    work.schedule(settled=True)
    assert (work.preemptions, len(work.running)) == (1, 1)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    st.lists(st.tuples(st.integers(1, 24), st.integers(1, 8), st.integers(0, 2), st.booleans()), max_size=12),
    st.integers(8, 20),
    st.integers(1, 4),
    st.integers(4, 20),
    st.randoms(use_true_random=False),
)
def test_everything_ends_and_nothing_leaks(wanted, pages, sequences, budget, random):
    work = scheduler(pages=pages, sequences=sequences, budget=max(budget, sequences))
    everybody = [
        sequence(number, length, new=new, priority=priority, start=0 if shared else 40 * number)
        for number, (length, new, priority, shared) in enumerate(wanted)
    ]
    for each in everybody:
        work.add(each)
    left = len(everybody)
    for _ in range(2000):
        if not left:
            break
        batch = work.schedule(settled=True)
        decoded = sum(count for _, count in batch.decode)
        assert decoded + sum(chunk.count for chunk in batch.chunks) <= max(budget, sequences)
        for chunk in batch.chunks:
            assert chunk.start % PAGE == 0
            assert chunk.count <= chunk.padded
        slots = [each.slot for each in work.running]
        assert len(set(slots)) == len(slots)
        left -= len(take(work, batch))
        if work.running and random.random() < 0.1:
            work.remove(random.choice(work.running))
            left -= 1
        work.pool.check_counts()
    assert (left, work.pool.used, work.num_waiting) == (0, 0, 0)
    assert (work.table[:, SLOT] == np.arange(sequences + 1)).all()


def test_a_flood_of_one_client_delays_another_ones_first_token_by_a_step():
    work = scheduler(pages=64, sequences=3)
    flood = [sequence(number, 12, new=20, start=20 * number, client="flood") for number in range(20)]
    for each in flood:
        work.add(each)
    for _ in range(6):
        take(work, work.schedule(settled=True))
    assert [each.request.client for each in work.running] == ["flood"] * 3
    small = sequence(99, 3, new=2, start=900, client="small")
    work.add(small)
    # What is being computed comes first; then one of the flood's makes room.
    assert work.schedule(settled=False).is_starved
    batch = work.schedule(settled=True)
    assert [chunk.sequence.request.id for chunk in batch.chunks] == ["99"]
    assert work.preemptions == 1
    take(work, batch)
    assert [each.request.id for each in take(work, work.schedule(settled=True))] == ["99"]
    finished_in_order(work)
    assert all(each.generated == 20 for each in flood)
    work.pool.check_counts()


def test_steps_are_short_while_one_client_floods_and_another_may_come(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("kanawa_runtime.serve.engine.scheduler.time.monotonic", lambda: now[0])
    work = scheduler(pages=64, sequences=2, budget=24, fused=4, short=8)
    for number in range(8):
        work.add(sequence(number, 12, new=20, start=100 * number, client="flood"))
    batch = work.schedule(settled=True)
    # Nobody else has asked yet.
    assert sum(chunk.count for chunk in batch.chunks) == 24
    take(work, batch)
    assert work.schedule(settled=True).steps == 4
    work.add(other := sequence(8, 1, new=1, client="other"))
    while not other.finished:
        take(work, work.schedule(settled=True))
    assert work.schedule(settled=True).steps == 1
    for each in list(work.running):
        work.remove(each)
    assert sum(chunk.count for chunk in work.schedule(settled=True).chunks) == 8
    now[0] = 11.0
    assert sum(chunk.count for chunk in work.schedule(settled=True).chunks) > 8


def test_long_prompts_of_one_client_leave_another_its_share_of_a_step():
    work = scheduler(pages=64, sequences=4, budget=16)
    for number in range(3):
        work.add(sequence(number, 28, start=40 * number, client="long"))
    take(work, work.schedule(settled=True))
    work.add(sequence(99, 6, start=900, client="small"))
    batch = work.schedule(settled=True)
    assert [chunk.sequence.request.id for chunk in batch.chunks][-1] == "99"
    assert batch.chunks[-1].is_last


def test_clients_take_turns():
    work = scheduler(sequences=1, pages=64)
    for number in range(6):
        work.add(sequence(number, 3, start=10 * number, client="a" if number < 4 else "b"))
    work.add(sequence(6, 3, start=60, client="c"))
    order = finished_in_order(work)
    assert sorted(order) == list(range(7))
    assert {order.index(4), order.index(6)} < {0, 1, 2, 3}


def test_clients_have_shares_by_their_weights():
    work = scheduler(pages=64, sequences=4)
    for number in range(8):
        work.add(sequence(number, 8, new=20, start=20 * number, client="heavy", weight=3))
    for _ in range(4):
        take(work, work.schedule(settled=True))
    assert [each.request.client for each in work.running] == ["heavy"] * 4
    for number in range(8, 16):
        work.add(sequence(number, 8, new=20, start=20 * number, client="light"))
    for _ in range(6):
        take(work, work.schedule(settled=True))
        running = collections.Counter(each.request.client for each in work.running)
    assert running == {"heavy": 3, "light": 1}
    finished_in_order(work)
    work.pool.check_counts()


def test_short_prompts_go_before_a_long_one_and_fewer_of_them_than_it_has_pages():
    work = scheduler(pages=64, sequences=4, budget=8)
    work.add(sequence(0, 12, new=1))
    for number in range(1, 9):
        work.add(sequence(number, 2, new=1, start=50 * number))
    # It has three pages.
    assert finished_in_order(work)[:4] == [1, 2, 0, 3]


def test_what_was_preempted_lets_none_go_first():
    work = scheduler(pages=64, sequences=2)
    first = sequence(0, 12, new=8)
    work.add(first)
    take(work, work.schedule(settled=True))
    work._preempt(first)
    work.add(sequence(1, 2, new=1, start=50))
    assert [chunk.sequence for chunk in work.schedule(settled=True).chunks][0] is first


def test_prompts_come_alone_while_most_wait_for_them_but_for_every_fourth_step():
    work = scheduler(pages=64, sequences=8, budget=9)
    work.add(sequence(0, 3, new=30))
    take(work, work.schedule(settled=True))
    for number in range(1, 8):
        work.add(sequence(number, 8, new=1, start=50 * number))
    decoded, prompts = [], []
    for _ in range(7):
        batch = work.schedule(settled=True)
        decoded.append(len(batch.decode))
        prompts.append(len(batch.chunks))
        take(work, batch)
    # The last one has as many that decode as prompts.
    assert decoded == [0, 0, 0, 1, 0, 0, 1]
    assert all(prompts)


def test_decoding_goes_on_where_no_prompt_has_room():
    work = scheduler(pages=8, sequences=8)
    work.add(sequence(0, 15, new=12))
    take(work, work.schedule(settled=True))
    for number in (1, 2, 3):
        work.add(sequence(number, 20, new=1, start=50 * number))
    batch = work.schedule(settled=True)
    assert (len(batch.decode), batch.chunks) == (1, [])


def test_a_step_has_no_more_chunks_than_its_largest_program():
    work = scheduler(pages=64, sequences=8, budget=64, chunks=3)
    for number in range(5):
        work.add(sequence(number, 10, new=1, start=50 * number))
    seen = []
    for _ in range(4):
        batch = work.schedule(settled=True)
        seen.append([(int(chunk.sequence.request.id), chunk.count) for chunk in batch.chunks])
        take(work, batch)
    assert seen == [[(0, 8), (0, 2), (1, 8)], [(1, 2), (2, 8), (2, 2)], [(3, 8), (3, 2), (4, 8)], [(4, 2)]]
