"""Chooses each step's decodes and prefills; preempts when pages run out.

Plain Python over plain integers: nothing here knows of a device.
"""

import bisect
import collections
import dataclasses
import heapq
import time
from collections.abc import Callable, Collection
from collections.abc import Sequence as SequenceOf

import numpy as np

from kanawa_runtime.serve.engine.page_pool import PagePool, page_digest
from kanawa_runtime.serve.engine.picture import content_between, end_of_chunk
from kanawa_runtime.serve.engine.rows import GENERATED, LENGTH, LOGPROBS, NUM_TOKENS, PAGES, RANDOM, SLOT
from kanawa_runtime.serve.engine.sequence import Sequence
from kanawa_runtime.serve.engine.shapes import Shapes, smallest_holding

#: Steps in a row that may leave decoding out for prompts.
_MOST_WITHOUT_DECODING = 3
#: How long after a request another one of its client is reckoned with.
_RECENT_SECONDS = 10.0
#: Returns guesses of the tokens that follow a sequence, at most so many.
Guess = Callable[[Sequence, int], list[int]]


@dataclasses.dataclass(frozen=True)
class Chunk:
    """`count` tokens of a sequence's prompt from `start` on, in a row of `padded`; the last chunk is sampled from."""

    sequence: Sequence
    start: int
    count: int
    padded: int
    is_last: bool


@dataclasses.dataclass
class StepBatch:
    """One step: sequences to decode, each by at most so many tokens, and then the chunks of prompts.

    `is_starved` says that pages are short: results still being computed have to be collected before a preemption.
    """

    decode: list[tuple[Sequence, int]] = dataclasses.field(default_factory=list)
    steps: int = 1
    #: Sequences with the guesses to verify.
    verify: list[tuple[Sequence, list[int]]] = dataclasses.field(default_factory=list)
    chunks: list[Chunk] = dataclasses.field(default_factory=list)
    #: Admitted sequences whose prompt another engine has prefilled: their pages are to be written.
    remote: list[Sequence] = dataclasses.field(default_factory=list)
    is_starved: bool = False


class Scheduler:
    """Waiting and running sequences, their slots and pages.

    Decodes come first, then prompts that were begun, then new ones while slots, pages and the step's token budget
    last. While more sequences wait for their first token than decode, most steps are of prompts alone. A new prompt
    lets fewer later, shorter ones go first than it has pages, and than `max_sequences`: none waits for ever. When pages
    run out, the sequence that is last in order is preempted; its tokens are computed again later.
    Several clients have shares of slots, pages and budget by their weights: the one with the fewest running sequences
    by its weight is next, and where it finds no room, one of the client with the most is preempted.
    """

    def __init__(
        self, *, max_sequences: int, max_length: int, page_size: int, pool: PagePool, budget: int, chunk: int,
        fused_steps: int, prefill_sizes: tuple[int, ...], reuses_prefixes: bool, has_pages: bool,
        guess: Guess | None = None, in_tiles: bool = False, short_budget: int | None = None,
        whole_pictures: bool = False, fuses_draws: bool = False, most_chunks: int | None = None,
    ) -> None:  # fmt: skip
        """With `in_tiles`, several chunks of one prompt may be rows of one program.

        With `whole_pictures` the tokens of a picture are in one chunk, which may be larger than the budget.
        `short_budget` are the tokens of prompts in a step while one client floods the engine, and `most_chunks` the
        chunks of the largest program: a few more would take another, mostly empty one.
        """
        self.pool, self.page_size = pool, page_size
        self.running: list[Sequence] = []
        #: Pages that outlive their sequence, by its request's id.
        self.held: dict[str, list[int]] = {}
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._waiting: list[tuple[tuple[int, int, int], Sequence]] = []
        #: How many sequences each client has here.
        self._clients: collections.Counter[str] = collections.Counter()
        self._weights: dict[str, int] = {}
        #: When each client last sent a request, of time.monotonic.
        self._last_sent: dict[str, float] = {}
        #: When each of them was last admitted, by count.
        self._turns: dict[str, int] = {}
        self._admissions = 0
        self._slots = list(range(max_sequences - 1, -1, -1))
        #: By how many places at most a long prompt lets later ones go first.
        self._most_overtaking = max_sequences
        #: Steps in a row that have left decoding out.
        self._without_decoding = 0
        self._max_length, self._budget, self._chunk = max_length, budget, chunk
        #: Tokens of a call: at most, and where a request could begin after it.
        self.fused_steps = self.open_steps = fused_steps
        self._prefill_sizes = prefill_sizes
        self._reuses_prefixes, self._has_pages = reuses_prefixes, has_pages
        self._guess, self._in_tiles, self._short_budget = guess, in_tiles, short_budget or budget
        self._most_chunks = most_chunks
        self._whole_pictures = whole_pictures
        #: What sequences may need whose tokens are decoded several a step.
        self._fusable = RANDOM | LOGPROBS if fuses_draws else 0
        self.width = -(-max_length // page_size) if has_pages else 1
        # A line a slot, always current, so that a step's rows are one copy out of it. The last is for padding rows.
        self.table = np.zeros((max_sequences + 1, PAGES + self.width), np.int32)
        self.table[:, SLOT] = np.arange(max_sequences + 1)

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence."""
        self._clients[sequence.request.client] += 1
        self._last_sent[sequence.request.client] = time.monotonic()
        self._weights[sequence.request.client] = sequence.request.weight
        self._push_waiting(sequence)

    def _push_waiting(self, sequence: Sequence) -> None:
        heapq.heappush(self._waiting, (self._turn(sequence), sequence))

    def _drop_waiting(self, sequence: Sequence) -> None:
        self._waiting = [entry for entry in self._waiting if entry[1] is not sequence]
        heapq.heapify(self._waiting)

    def _turn(self, sequence: Sequence) -> tuple[int, int, int]:
        """Returns what a waiting sequence is admitted by, lowest first: by arrivals alone, never by the clock."""
        # One that was preempted has let others go first.
        is_new = sequence.scheduled_at is None
        places = min(sequence.prompt_length // self.page_size, self._most_overtaking) if is_new else 0
        return sequence.request.priority, sequence.arrival + places, sequence.arrival

    def remove(self, sequence: Sequence) -> None:
        """Removes a sequence that is waiting or running, and frees its slot and pages."""
        sequence.finished = True
        self._clients[sequence.request.client] -= 1
        if not self._clients[sequence.request.client]:
            del self._clients[sequence.request.client]
            self._turns.pop(sequence.request.client, None)
            del self._weights[sequence.request.client]
        if sequence.slot >= 0:
            self._free_slot(sequence)
        else:
            self._drop_waiting(sequence)

    def hold_pages(self, sequence: Sequence) -> None:
        """Holds the pages of a sequence that is about to be removed, until `free_held_pages`."""
        pages = sequence.pages[: -(-sequence.computed // self.page_size)]
        for page in pages:
            self.pool.share(page)
        self.held[sequence.request.id] = pages

    def free_held_pages(self, request_id: str) -> None:
        """Frees held pages; an id without any is ignored."""
        self.pool.free(reversed(self.held.pop(request_id, [])))

    def schedule(self, *, settled: bool) -> StepBatch:
        """Returns the next step; `settled` says that nothing is being computed, so that sequences may be preempted."""
        batch = StepBatch()
        self._make_room(batch, settled=settled)
        if batch.is_starved:
            return batch
        flooded = self._is_flooded()
        prompts_alone = not flooded and self._serves_prompts_alone()
        if not prompts_alone:
            self._schedule_decodes(batch, may_fuse=not flooded, settled=settled)
        if not batch.is_starved:
            spent = len(batch.decode) + sum(1 + len(guesses) for _, guesses in batch.verify)
            budget = self._budget - spent
            self._schedule_prompts(batch, min(budget, self._short_budget) if flooded else budget)
        if prompts_alone and not batch.chunks:
            # Pages are short: decoding frees them.
            self._schedule_decodes(batch, may_fuse=False, settled=settled)
        left_out = prompts_alone and not (batch.decode or batch.verify)
        self._without_decoding = self._without_decoding + 1 if left_out else 0
        return batch

    def _schedule_decodes(self, batch: StepBatch, *, may_fuse: bool, settled: bool) -> None:
        # A sequence that waits for a slot waits until another ends, so fused steps delay none.
        alone = not (self._waiting and self._slots) and all(
            s.is_prefilled and not s.flags & ~self._fusable for s in self.running
        )
        most = self.open_steps if self._may_admit_soon() else self.fused_steps
        batch.steps = most if alone and may_fuse else 1
        if self._waiting and self._fusable:
            # Slots of those that end within a step are empty until it has ended.
            batch.steps = -(-batch.steps // 4)
        for sequence in list(self.running):
            if sequence.slot < 0 or not sequence.is_prefilled or (sequence.needs_last_token and sequence.pending):
                continue
            left = self._tokens_left(sequence)
            guesses = self._guess(sequence, left - 1) if self._guess and sequence.speculates and left > 1 else []
            if guesses:
                if self._allocate(sequence, sequence.computed + 1 + len(guesses), batch, settled=settled):
                    batch.verify.append((sequence, guesses))
                continue
            count = min(batch.steps, left)
            # None are left while its last token is being computed.
            if count > 0 and self._allocate(sequence, sequence.computed + count, batch, settled=settled):
                batch.decode.append((sequence, count))

    def _tokens_left(self, sequence: Sequence) -> int:
        return min(sequence.request.sampling.max_tokens - sequence.generated, self._max_length - sequence.length)

    def _may_admit_soon(self) -> bool:
        """Returns whether a slot is free, or will be when what is being computed is read."""
        return bool(self._slots) or any(s.is_prefilled and self._tokens_left(s) <= 0 for s in self.running)

    def _serves_prompts_alone(self) -> bool:
        """Returns whether this step may leave decoding out: more sequences wait for their first token than decode."""
        decoding = sum(sequence.is_prefilled for sequence in self.running)
        prompts = len(self.running) - decoding + min(len(self._waiting), len(self._slots))
        return 0 < decoding < prompts and self._without_decoding < _MOST_WITHOUT_DECODING

    def _is_flooded(self) -> bool:
        """Returns whether one client has most of all sequences, and others may send one soon: steps are short then.

        What such a client sends never ends, and the next request of another waits for the step that runs.
        """
        total = self._clients.total()
        if not total or 2 * max(self._clients.values()) < total or not self._waiting:
            return False
        since = time.monotonic() - _RECENT_SECONDS
        self._last_sent = {client: at for client, at in self._last_sent.items() if at > since}
        return len(self._last_sent) > 1

    def _next_waiting(self, barred: Collection[str] = ()) -> Sequence | None:
        """Returns which sequence is admitted next: of several clients that of the one with the fewest running.

        Sequences count by their client's weight.
        """
        if len(self._clients) < 2:
            return self._waiting[0][1] if self._waiting and not barred else None
        running = collections.Counter(s.request.client for s in self.running)
        others = [entry for entry in self._waiting if entry[1].request.client not in barred]

        def turn(entry: tuple[tuple[int, int, int], Sequence]) -> tuple[int, float, int, tuple[int, int, int]]:
            request = entry[1].request
            held = running[request.client] / self._weights[request.client]
            return request.priority, held, self._turns.get(request.client, -1), entry[0]

        return min(others, key=turn)[1] if others else None

    def _make_room(self, batch: StepBatch, *, settled: bool) -> None:
        """Preempts sequences of the client that runs most, while another with fewer waits for a slot or pages."""
        while len(self._clients) > 1 and (waiting := self._next_waiting()) is not None:
            pages = -(-len(waiting.tokens) // self.page_size) + len(self.running)
            if self._slots and (not self._has_pages or pages <= self.pool.available):
                return
            counts = collections.Counter(s.request.client for s in self.running)
            held = {client: count / self._weights[client] for client, count in counts.items()}
            client = max(held, key=lambda each: held[each], default="")
            own = [s for s in self.running if s.request.client == client and s.order[0] >= waiting.order[0]]
            asking = waiting.request.client
            # Not for a sequence that would then be the one to go.
            if not own or (counts[client] - 1) / self._weights[client] < (counts[asking] + 1) / self._weights[asking]:
                return
            if not settled:
                batch.is_starved = True
                return
            self._preempt(own[-1])

    def _schedule_prompts(self, batch: StepBatch, budget: int) -> None:
        begun = [sequence for sequence in self.running if not sequence.is_prefilled]
        clients = set(self._clients)
        if len(clients) > 1:
            clients = {s.request.client for s in begun} | {entry[1].request.client for entry in self._waiting}
        weights = sum(self._weights[client] for client in clients)
        left = {
            client: max(self.page_size, budget * self._weights[client] // weights) if len(clients) > 1 else budget
            for client in clients
        }

        def schedule_chunks(sequence: Sequence) -> None:
            nonlocal budget
            allowed = min(budget, left[sequence.request.client])
            spent = allowed - self._schedule_chunks(sequence, batch, allowed)
            budget -= spent
            left[sequence.request.client] -= spent

        for sequence in begun:
            schedule_chunks(sequence)
        barred: set[str] = set()
        while self._slots and (waiting := self._next_waiting(barred)) is not None:
            client = waiting.request.client
            room = min(budget, left[client])
            has_room = waiting.remote_prefill is not None or room >= min(self.page_size, len(waiting.tokens))
            if not (has_room and self._has_chunks_left(batch) and self._admit(waiting)):
                barred.add(client)
                continue
            self._drop_waiting(waiting)
            self._admissions += 1
            self._turns[client] = self._admissions
            bisect.insort(self.running, waiting, key=lambda s: s.order)
            if waiting.remote_prefill is not None:
                batch.remote.append(waiting)
            schedule_chunks(waiting)

    def _has_chunks_left(self, batch: StepBatch) -> bool:
        return self._most_chunks is None or len(batch.chunks) < self._most_chunks

    def _schedule_chunks(self, sequence: Sequence, batch: StepBatch, budget: int) -> int:
        """Adds chunks of a prompt within the budget; returns what is left of it."""
        start = sequence.computed
        while start < sequence.target and budget > 0 and self._has_chunks_left(batch):
            rest = sequence.target - start
            # Chunks but the last end where pages do, so that every one begins there.
            most = min(self._chunk, budget, rest)
            count = most if most == rest else most // self.page_size * self.page_size
            reach = self.width * self.page_size
            # A tile may reach past the table: what it has there is padding, which is written nowhere.
            may_pass = self._in_tiles or self._whole_pictures
            sizes = [size for size in self._prefill_sizes if may_pass or start + size <= reach]
            if self._has_pages and sizes:
                count = min(count, sizes[-1])
            if self._whole_pictures:
                count = end_of_chunk(sequence.pictures, start, start + count) - start
            if count <= 0:
                break
            padded = smallest_holding(sizes or self._prefill_sizes, count)
            batch.chunks.append(Chunk(sequence, start, count, padded, start + count == sequence.target))
            start += count
            budget -= count
        return budget

    def _admit(self, sequence: Sequence) -> bool:
        """Gives a waiting sequence a slot and the pages of all its tokens; returns False where pages are short."""
        tokens, size = len(sequence.tokens), self.page_size
        shared: list[int] = []
        is_remote = sequence.remote_prefill is not None
        wants_prefix = self._reuses_prefixes and sequence.request.sampling.prompt_logprobs is None and not is_remote
        if wants_prefix:
            self._add_digests(sequence, tokens)
            # The last token is always computed: its logits say what follows.
            shared = self.pool.find_cached(sequence.digests[: (tokens - 1) // size])
        if self._has_pages:
            needed = -(-tokens // size) - len(shared)
            revived = sum(self.pool.is_cached(page) for page in shared)
            # One more page for each running sequence, or this one would be preempted at once.
            if needed + revived + len(self.running) > self.pool.available and (self.running or self.held):
                return False
            for page in shared:
                self.pool.share(page)
            sequence.pages = [*shared, *(self.pool.allocate() for _ in range(needed))]
        if wants_prefix:
            self.prefix_queries += tokens
            self.prefix_hits += len(shared) * size
        sequence.slot = self._slots.pop()
        sequence.num_cached_pages = len(shared)
        sequence.computed, sequence.target = len(shared) * size, tokens
        if is_remote:
            # All but the last token, which is fed to decode.
            sequence.computed = sequence.target = tokens - 1
        if sequence.scheduled_at is None:
            sequence.scheduled_at = time.monotonic()
            sequence.cached_tokens = sequence.cached_tokens if is_remote else sequence.computed
        row = self.table[sequence.slot]
        sequence.write_row(row)
        row[PAGES : PAGES + len(sequence.pages)] = sequence.pages
        row[LENGTH] = sequence.computed
        return True

    def _free_slot(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        # The last page first: the pool evicts in the order of freeing, and prefixes are of more use.
        self.pool.free(reversed(sequence.pages))
        sequence.pages = []
        self._slots.append(sequence.slot)
        sequence.slot = -1

    def _allocate(self, sequence: Sequence, tokens: int, batch: StepBatch, *, settled: bool) -> bool:
        """Gives a running sequence pages for so many tokens; returns False where it has to wait or was preempted."""
        if not self._has_pages:
            return True
        missing = -(-tokens // self.page_size) - len(sequence.pages)
        if missing <= 0:
            return True
        while self.pool.available < missing:
            if not settled:
                batch.is_starved = True
                return False
            last = self.running[-1]
            self._preempt(last)
            if last is sequence:
                return False
        row, have = self.table[sequence.slot], len(sequence.pages)
        pages = [self.pool.allocate() for _ in range(missing)]
        row[PAGES + have : PAGES + have + missing] = pages
        sequence.pages += pages
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._free_slot(sequence)
        sequence.computed = sequence.target = sequence.num_cached_pages = 0
        sequence.remote_prefill = None
        self.preemptions += 1
        self._push_waiting(sequence)

    def cache_full_pages(self, sequence: Sequence) -> None:
        """Records the content of the pages that the sequence has filled, for other sequences to share."""
        # Without a slot it ended while its last chunk was sent (a grammar refused), and its pages are freed already.
        if not self._reuses_prefixes or sequence.slot < 0:
            return
        full = min(sequence.computed, len(sequence.tokens)) // self.page_size
        if full <= sequence.num_cached_pages:
            return
        self._add_digests(sequence, full * self.page_size)
        for index in range(sequence.num_cached_pages, full):
            self.pool.cache(sequence.pages[index], sequence.digests[index])
        sequence.num_cached_pages = full

    def evict_pages(self, sequence: Sequence) -> None:
        """Drops the contents of a sequence's pages, so that no other sequence shares them."""
        for page in sequence.pages:
            self.pool.evict(page)

    def _add_digests(self, sequence: Sequence, tokens: int) -> None:
        """Adds the digests of the full pages of its first tokens that it doesn't have yet."""
        size, digests = self.page_size, sequence.digests
        for index in range(len(digests), tokens // size):
            before = digests[-1] if digests else sequence.root
            first, last = index * size, (index + 1) * size
            content = content_between(sequence.pictures, first, last) if sequence.pictures else b""
            digests.append(page_digest(before, sequence.tokens[first:last], content))


def packed_rows(rows: list[tuple[Sequence, int]], shapes: Shapes, table: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns the rows of sequences with so many tokens each, and what they need as flags."""
    count, flags, longest = smallest_holding(shapes.batch_sizes, len(rows)), 0, 1
    # Padding rows have a slot of their own.
    at = np.full(count, table.shape[0] - 1)
    facts = np.zeros((count, 3), np.int32)
    for index, (sequence, steps) in enumerate(rows):
        at[index] = sequence.slot
        facts[index] = sequence.computed, steps, sequence.generated
        flags |= sequence.flags
        longest = max(longest, len(sequence.pages))
    packed = table[at, : PAGES + smallest_holding(shapes.page_widths, longest)]
    packed[:, LENGTH], packed[:, NUM_TOKENS], packed[:, GENERATED] = facts.T
    return packed, flags


def packed_chunks(
    chunks: SequenceOf[Chunk], count: int, shapes: Shapes, scheduler: Scheduler, *, after: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns `count` rows for chunks of prompts, and their tokens with so many `after` them; both padded."""
    padding = scheduler.table.shape[0] - 1
    padded = shapes.prefill_sizes[-1] if after else chunks[0].padded
    pages = max(-(-(chunk.start + padded) // scheduler.page_size) for chunk in chunks)
    width = shapes.page_widths[-1] if after else smallest_holding(shapes.page_widths, pages)
    at, facts = np.full(count, padding), np.zeros((count, 3), np.int32)
    ids = np.zeros((count, padded + after), np.int32)
    for index, chunk in enumerate(chunks):
        at[index] = chunk.sequence.slot
        facts[index] = chunk.start, chunk.count, chunk.sequence.generated
        tokens = chunk.sequence.tokens[chunk.start : chunk.start + chunk.count + after]
        ids[index, : len(tokens)] = tokens
    packed = scheduler.table[at, : PAGES + width]
    packed[:, LENGTH], packed[:, NUM_TOKENS], packed[:, GENERATED] = facts.T
    if shapes.in_tiles:
        # Only a prompt's last tile knows the token that follows it.
        packed[: len(chunks), SLOT][[not chunk.is_last for chunk in chunks]] = padding
    return packed, ids
