"""Who goes next: what a step decodes, which prompts it takes in, and who gives its pages back when they run out.

Plain Python over plain integers: nothing here knows of a device.
"""

import bisect
import dataclasses
import heapq
import time
from collections.abc import Callable

import numpy as np

from kanawa_runtime.serve.engine import prefix
from kanawa_runtime.serve.engine.buckets import smallest_holding
from kanawa_runtime.serve.engine.page_pool import PagePool
from kanawa_runtime.serve.engine.rows import LENGTH, PAGES, SLOT
from kanawa_runtime.serve.engine.sequence import Sequence

#: Guesses at most so many tokens that may follow a sequence.
Guess = Callable[[Sequence, int], list[int]]


@dataclasses.dataclass(frozen=True)
class Chunk:
    """`count` tokens of a sequence from `start` on, in a row of `padded`; the last one is sampled from."""

    sequence: Sequence
    start: int
    count: int
    padded: int
    is_last: bool


@dataclasses.dataclass
class Plan:
    """A step: sequences that are decoded, each by at most so many tokens, and then the chunks of prompts.

    `is_starved` says that pages are short: what is being computed has to be seen before somebody is preempted.
    """

    decode: list[tuple[Sequence, int]] = dataclasses.field(default_factory=list)
    steps: int = 1
    #: Sequences with the guesses that are verified.
    verify: list[tuple[Sequence, list[int]]] = dataclasses.field(default_factory=list)
    chunks: list[Chunk] = dataclasses.field(default_factory=list)
    #: Sequences whose prompt another engine has taken in, just seated: their pages are to be written.
    given: list[Sequence] = dataclasses.field(default_factory=list)
    is_starved: bool = False


class Scheduler:
    """Waiting and running sequences, their slots and pages.

    Decoding comes first, then prompts that were begun, then new ones while slots, pages and the step's budget of tokens
    last. Pages that run out are taken from whoever comes last, which computes its tokens again later.
    """

    def __init__(
        self, *, max_sequences: int, max_length: int, page_size: int, pool: PagePool, budget: int, chunk: int,
        fused_steps: int, prefill_sizes: tuple[int, ...], reuses_prefixes: bool, has_pages: bool,
        guess: Guess | None = None, in_tiles: bool = False,
    ) -> None:  # fmt: skip
        """With `in_tiles` several chunks of one prompt may be rows of one program."""
        self.pool, self.page_size = pool, page_size
        self.running: list[Sequence] = []
        #: Pages that outlive their sequence, by its request's id.
        self.held: dict[str, list[int]] = {}
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._waiting: list[tuple[tuple[int, int], Sequence]] = []
        self._slots = list(range(max_sequences - 1, -1, -1))
        self._max_length, self._budget, self._chunk = max_length, budget, chunk
        self._fused_steps, self._prefill_sizes = fused_steps, prefill_sizes
        self._reuses_prefixes, self._has_pages = reuses_prefixes, has_pages
        self._guess, self._in_tiles = guess, in_tiles
        self.width = -(-max_length // page_size) if has_pages else 1
        # A line a slot, kept up to date, so that a step's rows are one copy out of it. The last is nobody's.
        self.table = np.zeros((max_sequences + 1, PAGES + self.width), np.int32)
        self.table[:, SLOT] = np.arange(max_sequences + 1)

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    def waiting(self) -> list[Sequence]:
        """Returns those without a slot, in no order."""
        return [sequence for _, sequence in self._waiting]

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence."""
        heapq.heappush(self._waiting, (sequence.order, sequence))

    def remove(self, sequence: Sequence) -> None:
        """Lets a sequence go, with its slot and pages, wherever it is."""
        sequence.finished = True
        if sequence.slot >= 0:
            self._unseat(sequence)
        else:
            self._waiting = [entry for entry in self._waiting if entry[1] is not sequence]
            heapq.heapify(self._waiting)

    def hold(self, sequence: Sequence) -> None:
        """Keeps the pages of a sequence that is about to go; `let_go` frees them."""
        pages = sequence.pages[: -(-sequence.computed // self.page_size)]
        for page in pages:
            self.pool.share(page)
        self.held[sequence.request.id] = pages

    def let_go(self, request_id: str) -> None:
        """Frees held pages; an id without any is no error."""
        self.pool.release(reversed(self.held.pop(request_id, [])))

    def plan(self, *, settled: bool) -> Plan:
        """Returns the next step; `settled` says that nothing is being computed, so that sequences may be preempted."""
        plan = Plan()
        # Who waits for a slot is kept waiting until somebody ends, so that a few tokens at once delay nobody else.
        alone = not (self._waiting and self._slots) and all(s.is_prefilled and not s.flags for s in self.running)
        plan.steps = self._fused_steps if alone else 1
        for sequence in list(self.running):
            if sequence.slot < 0 or not sequence.is_prefilled or (sequence.waits_for_itself and sequence.pending):
                continue
            left = min(sequence.request.sampling.max_tokens - sequence.generated, self._max_length - sequence.length)
            guesses = self._guess(sequence, left - 1) if self._guess and sequence.speculates and left > 1 else []
            if guesses:
                if self._grow(sequence, sequence.computed + 1 + len(guesses), plan, settled=settled):
                    plan.verify.append((sequence, guesses))
                continue
            count = min(plan.steps, left)
            # What is left may be none: its last token is being computed.
            if count > 0 and self._grow(sequence, sequence.computed + count, plan, settled=settled):
                plan.decode.append((sequence, count))
        if not plan.is_starved:
            spent = len(plan.decode) + sum(1 + len(guesses) for _, guesses in plan.verify)
            self._plan_prompts(plan, self._budget - spent)
        return plan

    def _plan_prompts(self, plan: Plan, budget: int) -> None:
        for sequence in self.running:
            if not sequence.is_prefilled:
                budget = self._cut(sequence, plan, budget)
        while self._waiting and self._slots:
            sequence = self._waiting[0][1]
            if sequence.given is None and budget < min(self.page_size, len(sequence.tokens)):
                break
            if not self._seat(sequence):
                break
            heapq.heappop(self._waiting)
            bisect.insort(self.running, sequence, key=lambda s: s.order)
            if sequence.given is not None:
                plan.given.append(sequence)
            budget = self._cut(sequence, plan, budget)

    def _cut(self, sequence: Sequence, plan: Plan, budget: int) -> int:
        """Plans chunks of a prompt within the budget; returns what is left of it."""
        start = sequence.computed
        while start < sequence.target and budget > 0:
            rest = sequence.target - start
            # Chunks but the last end where pages do, so that every one begins there.
            most = min(self._chunk, budget, rest)
            count = most if most == rest else most // self.page_size * self.page_size
            reach = self.width * self.page_size
            # A tile may reach past the table: what it has there is padding, which is written nowhere.
            sizes = [size for size in self._prefill_sizes if self._in_tiles or start + size <= reach]
            if self._has_pages and sizes:
                count = min(count, sizes[-1])
            if count <= 0:
                break
            padded = smallest_holding(sizes or self._prefill_sizes, count)
            plan.chunks.append(Chunk(sequence, start, count, padded, start + count == sequence.target))
            start += count
            budget -= count
        return budget

    def _seat(self, sequence: Sequence) -> bool:
        """Gives a waiting sequence a slot and the pages of all its tokens; returns False where they don't suffice."""
        tokens, size = len(sequence.tokens), self.page_size
        shared: list[int] = []
        comes_filled = sequence.given is not None
        wants_prefix = self._reuses_prefixes and sequence.request.sampling.prompt_logprobs is None and not comes_filled
        if wants_prefix:
            self._digest(sequence, tokens)
            # The last token is always computed: somebody has to say what follows it.
            shared = self.pool.known(sequence.digests[: (tokens - 1) // size])
        if self._has_pages:
            needed = -(-tokens // size) - len(shared)
            revived = sum(self.pool.is_cached(page) for page in shared)
            # A page for each that runs, or it would be preempted at once for what comes in.
            if needed + revived + len(self.running) > self.pool.available and (self.running or self.held):
                return False
            for page in shared:
                self.pool.share(page)
            sequence.pages = [*shared, *(self.pool.take() for _ in range(needed))]
        if wants_prefix:
            self.prefix_queries += tokens
            self.prefix_hits += len(shared) * size
        sequence.slot = self._slots.pop()
        sequence.described = len(shared)
        sequence.computed, sequence.target = len(shared) * size, tokens
        if comes_filled:
            # All but the last token, which is fed to decode.
            sequence.computed = sequence.target = tokens - 1
        if sequence.scheduled_at is None:
            sequence.scheduled_at = time.monotonic()
            sequence.cached_tokens = sequence.cached_tokens if comes_filled else sequence.computed
        row = self.table[sequence.slot]
        sequence.write_row(row)
        row[PAGES : PAGES + len(sequence.pages)] = sequence.pages
        row[LENGTH] = sequence.computed
        return True

    def _unseat(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        # The last page first: the pool gives up what was released first, and beginnings are of more use.
        self.pool.release(reversed(sequence.pages))
        sequence.pages = []
        self._slots.append(sequence.slot)
        sequence.slot = -1

    def _grow(self, sequence: Sequence, tokens: int, plan: Plan, *, settled: bool) -> bool:
        """Gives a running sequence pages for so many tokens; returns False where it has to wait or was preempted."""
        if not self._has_pages:
            return True
        missing = -(-tokens // self.page_size) - len(sequence.pages)
        if missing <= 0:
            return True
        while self.pool.available < missing:
            if not settled:
                plan.is_starved = True
                return False
            last = self.running[-1]
            self._preempt(last)
            if last is sequence:
                return False
        row, have = self.table[sequence.slot], len(sequence.pages)
        taken = [self.pool.take() for _ in range(missing)]
        row[PAGES + have : PAGES + have + missing] = taken
        sequence.pages += taken
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._unseat(sequence)
        sequence.computed = sequence.target = sequence.described = 0
        sequence.given = None
        self.preemptions += 1
        self.add(sequence)

    def describe_pages(self, sequence: Sequence) -> None:
        """Makes known the content of the pages that the sequence has filled, for others to share."""
        # Without a slot it ended while its last chunk was sent (a grammar refused), and its pages are others' already.
        if not self._reuses_prefixes or sequence.slot < 0:
            return
        full = min(sequence.computed, len(sequence.tokens)) // self.page_size
        if full <= sequence.described:
            return
        self._digest(sequence, full * self.page_size)
        for index in range(sequence.described, full):
            self.pool.describe(sequence.pages[index], sequence.digests[index])
        sequence.described = full

    def distrust(self, sequence: Sequence) -> None:
        """Has nobody share the pages that a sequence filled, from now on."""
        for page in sequence.pages:
            self.pool.forget_page(page)

    def _digest(self, sequence: Sequence, tokens: int) -> None:
        """Names the content of the first full pages of a sequence, as far as it isn't yet."""
        size, digests = self.page_size, sequence.digests
        for index in range(len(digests), tokens // size):
            before = digests[-1] if digests else sequence.root
            digests.append(prefix.extend(before, sequence.tokens[index * size : (index + 1) * size]))
