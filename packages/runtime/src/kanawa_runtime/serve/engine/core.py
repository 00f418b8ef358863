"""The engine without its thread: takes requests, runs steps, and hands out what they gained.

A step is sent to the device before the result of the one before it is looked at, so that the host works while the
device does. What is found to have ended is then computed once more in vain, which changes nothing: no page or slot is
written by a later program before that.
"""

import collections
import dataclasses
import functools
import heapq
import itertools
import logging
import operator
import secrets
import time
from collections.abc import Sequence as SequenceOf
from typing import Any

import jax
import numpy as np
from kanawa.errors import UsageError

from kanawa_runtime.serve.adapters.bank import Bank
from kanawa_runtime.serve.disaggregated.pages import Given
from kanawa_runtime.serve.engine import prefix
from kanawa_runtime.serve.engine.buckets import grouped
from kanawa_runtime.serve.engine.choose import NOT_FINITE, NOTHING
from kanawa_runtime.serve.engine.packing import packed_chunks, packed_rows
from kanawa_runtime.serve.engine.programs import Programs
from kanawa_runtime.serve.engine.request import FinishReason, OnOutput, Output, Request, TokenLogprobs
from kanawa_runtime.serve.engine.rows import LOGPROBS, MASK, RANDOM, TABLES, UNIFORM
from kanawa_runtime.serve.engine.scheduler import Chunk, Plan, Scheduler
from kanawa_runtime.serve.engine.sequence import Sequence, allowed_bits, logprobs_of, needs, tables
from kanawa_runtime.serve.speculation.speculator import Speculator

logger = logging.getLogger(__name__)

#: Steps whose results are still to be looked at while the next one is sent.
_DEPTH = 1
#: What is told of a row that has no token to give.
_FAULTS = {
    NOT_FINITE: "the model's numbers are no longer finite for this request: what follows its text can't be said",
    NOTHING: "no token may follow: the allowed tokens, the biases and the bad words exclude each other",
}
#: Deadlines of requests that have ended, before they are looked for.
_FORGOTTEN = 64


@dataclasses.dataclass(frozen=True)
class _Sent:
    """Results on their way: `rows` are the sequences with the number of tokens each was given or may gain."""

    rows: list[tuple[Sequence, int]]
    ids: jax.Array
    details: jax.Array | None
    #: Of chunks whose prompts' log-probabilities are wanted.
    told: jax.Array | None = None
    chunks: SequenceOf[Chunk] = ()
    #: How many tokens were guessed for each row, where these are gains of guesses.
    guessed: list[int] | None = None


class Core:
    """Sequences by request id, the scheduler and the programs; used by one thread only."""

    def __init__(
        self, programs: Programs, scheduler: Scheduler, max_length: int, bank: Bank | None = None,
        speculator: Speculator | None = None, transfer: Any = None,
    ) -> None:  # fmt: skip
        self.transfer = transfer
        self.programs, self.scheduler, self.bank, self.speculator = programs, scheduler, bank, speculator
        self.sequences: dict[str, Sequence] = {}
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.steps = 0
        #: Seconds of steps in which the host worked, and didn't wait for the device.
        self.host_seconds = 0.0
        self._working_since = 0.0
        self.finished: collections.Counter[str] = collections.Counter()
        self._max_length = max_length
        self._arrivals = 0
        self._in_flight: collections.deque[list[_Sent]] = collections.deque()
        self._deadlines: list[tuple[float, int, Sequence]] = []
        #: Whether the last step found nothing it could do: all that wait, wait for pages that are held for others.
        self.is_stuck = False

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do until somebody asks."""
        return not self.sequences and not self._in_flight

    def add(
        self, request: Request, on_output: OnOutput, *, keeps_pages: bool = False, given: Given | None = None
    ) -> None:
        """Takes a request that was checked; one that can't be taken all the same ends as "error", and so it is told."""
        sequence = None
        try:
            sequence = self._begin(request, on_output, keeps_pages=keeps_pages)
            self._take(sequence, given)
        except Exception as error:
            # Its own fault or ours: nobody else's request shall pay for it, and nobody wait for an answer.
            if not isinstance(error, UsageError):
                logger.exception("request %s couldn't be taken", request.id)
            text = f"the request couldn't be taken: {error}"
            if sequence is None:
                self._report(on_output, Output(request_id=request.id, finish_reason="error", error=text))
            else:
                self._finish(sequence, "error", error=text)

    def _begin(self, request: Request, on_output: OnOutput, *, keeps_pages: bool) -> Sequence:
        sampling = request.sampling
        sequence = Sequence(
            request=request,
            on_output=on_output,
            arrival=self._arrivals,
            tokens=list(request.prompt_ids),
            prompt_length=len(request.prompt_ids),
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            stops=frozenset(sampling.stop_token_ids),
            flags=needs(request),
            root=prefix.root(request.cache_salt, None),
            digests=[],
            bad_words=tuple(word for word in sampling.bad_words if len(word) > 1),
        )
        sequence.keeps_pages = keeps_pages
        # What penalties, biases and masks say of a token depends on each one before it: those go one at a time.
        sequence.speculates = self.speculator is not None and not sequence.flags & (TABLES | MASK)
        self._arrivals += 1
        self.sequences[request.id] = sequence
        return sequence

    def _take(self, sequence: Sequence, given: Given | None) -> None:
        request, digest = sequence.request, None
        if request.adapter is not None and self.bank is not None:
            seat = sequence.seat = self.bank.take(request.adapter)
            sequence.adapter, digest = seat.slot, seat.digest
            sequence.root = prefix.root(request.cache_salt, seat.salt)
        if given is not None and given.layout != self.transfer.layout_with(digest):
            # Older weights' pages would be found by later prompts too: it is taken in here instead.
            given = None
        self.prompt_tokens += sequence.prompt_length
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, sequence.arrival, sequence))
        if given is not None:
            self._take_first(sequence, given)
        if not sequence.finished:
            self.scheduler.add(sequence)

    def _take_first(self, sequence: Sequence, given: Given) -> None:
        """Goes on where another engine stopped: its token counts, and is told of here."""
        first = given.first
        sequence.tokens += first.token_ids
        sequence.given, sequence.told_cached = given, True
        sequence.cached_tokens = first.cached_tokens
        self.generation_tokens += len(first.token_ids)
        self._tell(sequence, dataclasses.replace(first, finish_reason=None))

    def _write_given(self, sequence: Sequence) -> None:
        given, sequence.given = sequence.given, None
        pages = sequence.pages[: given.arrays[0].shape[0]]
        self.transfer.put(pages, given.arrays, sequence.slot, sequence.tokens[-1])
        if sequence.flags & TABLES:
            self.programs.seat(sequence.slot, *tables(sequence, self.programs.vocab))
        self.scheduler.describe_pages(sequence)

    def cancel(self, request_id: str) -> None:
        """Ends a request as "abort"; its pages are free at once."""
        sequence = self.sequences.get(request_id)
        if sequence is not None:
            self._finish(sequence, "abort")

    def end(self, reason: FinishReason, error: str | None = None) -> None:
        """Ends everything, whatever is still being computed."""
        self._in_flight.clear()
        for sequence in list(self.sequences.values()):
            self._finish(sequence, reason, error=error)

    def expire(self) -> None:
        """Ends the requests whose deadline has passed."""
        if len(self._deadlines) > 2 * len(self.sequences) + _FORGOTTEN:
            # Those that ended in time would be kept until their deadline.
            self._deadlines = [entry for entry in self._deadlines if not entry[2].finished]
            heapq.heapify(self._deadlines)
        while self._deadlines and self._deadlines[0][0] <= time.monotonic():
            self._finish(heapq.heappop(self._deadlines)[2], "abort")

    def seconds_to_deadline(self) -> float | None:
        """Returns how long until a request's deadline passes; None where none has any."""
        return max(0.0, self._deadlines[0][0] - time.monotonic()) if self._deadlines else None

    def forget_prefixes(self) -> None:
        """Forgets what cached pages hold: other weights would have written something else."""
        # Between two steps: since the last one the host may have been idle.
        self._working_since = time.perf_counter()
        self.settle()
        self.scheduler.pool.forget()
        for sequence in self.sequences.values():
            # What is computed from here on stands on older pages, and may not be found under the tokens' names either.
            sequence.described = 10**9 if sequence.slot >= 0 else 0
            sequence.given = None

    def settle(self) -> None:
        """Waits for all that is being computed."""
        while self._in_flight:
            self._collect()

    def step(self) -> None:
        """Sends the next step to the device, and takes in the results of the one before it."""
        self._working_since = time.perf_counter()
        self._step()
        self._count_work()

    def _count_work(self) -> None:
        """Counts what the host has done since it last waited, so that whoever looks meanwhile sees it grow."""
        now = time.perf_counter()
        self.host_seconds += now - self._working_since
        self._working_since = now

    def _step(self) -> None:
        self.expire()
        plan = self.scheduler.plan(settled=not self._in_flight)
        if plan.is_starved:
            # Whoever gives up its pages has to know its tokens, and some may have ended.
            self.settle()
            plan = self.scheduler.plan(settled=True)
        sent = self._send(plan)
        self.is_stuck = not (sent or self._in_flight or self.scheduler.running)
        if sent:
            self.steps += 1
            self._in_flight.append(sent)
        if self._in_flight and (len(self._in_flight) > _DEPTH or not sent):
            self._collect()

    def _send(self, plan: Plan) -> list[_Sent]:
        sent = []
        for sequence in plan.given:
            self._write_given(sequence)
        if plan.decode:
            sent.append(self._send_decode(plan))
        if plan.verify:
            sent.append(self._send_verify(plan))
        return sent + self._send_chunks(plan.chunks)

    def _send_decode(self, plan: Plan) -> _Sent:
        rows = plan.decode
        packed, flags = packed_rows(rows, self.programs.shapes, self.scheduler.table)
        ids, logits = self.programs.decode(packed, plan.steps)
        details = None
        if flags:
            ids, details = self._sample([sequence for sequence, _ in rows], packed, logits, flags)
        for sequence, steps in rows:
            sequence.computed += steps
            sequence.pending += steps
        return _sent(rows, ids, details)

    def _send_verify(self, plan: Plan) -> _Sent:
        rows = [(sequence, 1 + len(guesses)) for sequence, guesses in plan.verify]
        packed, flags = packed_rows(rows, self.programs.shapes, self.scheduler.table)
        most = self.programs.speculation.count
        given = np.zeros((packed.shape[0], most), np.int32)
        uniforms = np.zeros((packed.shape[0], most + 1), np.int32)
        for index, (sequence, guesses) in enumerate(plan.verify):
            given[index, : len(guesses)] = guesses
            if sequence.flags & RANDOM:
                first = sequence.generated
                uniforms[index, : len(guesses) + 1] = [sequence.uniform(first + i) for i in range(len(guesses) + 1)]
            # How many it gains, nobody knows yet; one at least.
            sequence.pending += 1
        ids, details = self.programs.speculation.verify(packed, given, uniforms, flags)
        return dataclasses.replace(_sent(rows, ids, details), guessed=[count - 1 for _, count in rows])

    def _collect_verified(self, sent: _Sent, guessed: list[int]) -> None:
        ids = np.asarray(sent.ids).T.tolist()
        details = None if sent.details is None else np.asarray(sent.details)
        for row, (sequence, _) in enumerate(sent.rows):
            if sequence.finished:
                continue
            gained = [token for token in ids[row] if token != -1]
            sequence.pending -= 1
            # The pages behind hold what was guessed wrong, and is written over.
            sequence.computed += len(gained)
            if self.speculator is not None:
                self.speculator.count_accepted(guessed[row], len(gained) - 1)
            wanted = details is not None and sequence.request.sampling.logprobs is not None
            self._gain(sequence, gained, details[row] if wanted and details is not None else None)

    def _sample(self, sequences: list[Sequence | None], packed: np.ndarray, logits: Any, flags: int) -> tuple[Any, Any]:
        """Has tokens drawn in place of the likeliest ones; what there is to tell of them is None if nobody asks."""
        for row, sequence in zip(packed, sequences, strict=False):
            if sequence is not None and sequence.flags & RANDOM:
                row[UNIFORM] = sequence.uniform(sequence.generated)
        mask = self._mask(sequences, packed.shape[0]) if flags & MASK else None
        ids, details = self.programs.sample(packed, logits, flags, mask)
        return ids, details if flags & LOGPROBS else None

    def _send_chunks(self, chunks: SequenceOf[Chunk]) -> list[_Sent]:
        """Sends chunks of prompts, as many of them in one program as its rows hold."""
        rows, sent = self.programs.shapes.prefill_rows, []
        # Those of one prompt stay in order: a call computes after the one before it.
        for told, some in itertools.groupby(chunks, key=_is_told):
            sizes = rows[:1] if told else rows
            for few, count in grouped(list(some), sizes):
                sent.append(self._send_rows(few, count, told=told))
        return sent

    def _send_rows(self, chunks: SequenceOf[Chunk], count: int, *, told: bool) -> _Sent:
        packed, ids = packed_chunks(chunks, count, self.programs.shapes, self.scheduler, after=int(told))
        for chunk in chunks:
            if chunk.sequence.flags & TABLES and chunk.is_last:
                self.programs.seat(chunk.sequence.slot, *tables(chunk.sequence, self.programs.vocab))
        scores = None
        if told:
            chosen, logits, scores = self.programs.score(packed, ids)
        else:
            chosen, logits = self.programs.prefill(packed, ids)
        details, asked = None, [chunk.sequence if chunk.is_last else None for chunk in chunks]
        flags = functools.reduce(operator.or_, (sequence.flags for sequence in asked if sequence is not None), 0)
        if flags:
            chosen, details = self._sample(asked, packed, logits, flags)
        for chunk in chunks:
            chunk.sequence.computed = chunk.start + chunk.count
            chunk.sequence.pending += chunk.is_last
            self.scheduler.describe_pages(chunk.sequence)
        rows = [(chunk.sequence, int(chunk.is_last)) for chunk in chunks]
        return _sent(rows, chosen, details, scores, chunks)

    def _mask(self, sequences: list[Sequence | None], count: int) -> np.ndarray:
        words = -(-self.programs.vocab // 32)
        bits = np.full((count, words), -1, np.int32)
        for row, sequence in zip(bits, sequences, strict=False):
            if sequence is not None and sequence.flags & MASK:
                try:
                    row[:] = allowed_bits(sequence, words)
                except Exception as error:
                    # Its row is computed all the same, and thrown away.
                    self._finish(sequence, "error", error=_of_grammar(error), is_refused=True)
        return bits

    def _collect(self) -> None:
        """Takes in the results of the oldest step."""
        results = self._in_flight.popleft()
        self._count_work()
        for sent in results:
            # All of a step end with its last program: what comes after this is the host's own work.
            sent.ids.block_until_ready()
        self._working_since = time.perf_counter()
        for sent in results:
            if sent.guessed is not None:
                self._collect_verified(sent, sent.guessed)
                continue
            ids = np.asarray(sent.ids).T.tolist()
            details = None if sent.details is None else np.asarray(sent.details)
            if sent.told is not None:
                self._keep_prompt_logprobs(sent.chunks, np.asarray(sent.told))
            for row, (sequence, count) in enumerate(sent.rows):
                if sequence.finished or not count:
                    continue
                sequence.pending -= count
                own = None
                if details is not None and sequence.request.sampling.logprobs is not None:
                    own = details[row : row + 1]
                self._gain(sequence, ids[row][:count], own)

    def _gain(self, sequence: Sequence, ids: list[int], details: np.ndarray | None) -> None:
        """Adds new tokens to a sequence, and says so; the first -1 or stop token ends them."""
        sampling, tokens = sequence.request.sampling, sequence.tokens
        most = min(sequence.prompt_length + sampling.max_tokens, self._max_length)
        gained: list[int] = []
        reason: FinishReason | None = None
        stop = error = None
        refused = False
        for token in ids:
            if token in _FAULTS:
                # Whoever comes with this prompt has it computed again: who knows what went wrong.
                self.scheduler.distrust(sequence)
                reason, error, refused = "error", _FAULTS[token], token == NOTHING
                break
            if token in sequence.stops and len(tokens) - sequence.prompt_length >= sampling.min_tokens:
                reason, stop = "stop", token
                break
            tokens.append(token)
            gained.append(token)
            try:
                complete = sampling.grammar is not None and sampling.grammar.accept(token)
            except Exception as refusal:
                reason, error, refused = "error", _of_grammar(refusal), True
                break
            if complete or len(tokens) >= most:
                reason = "stop" if complete else "length"
                break
        self.generation_tokens += len(gained)
        self.scheduler.describe_pages(sequence)
        logprobs = ending = None
        if details is not None:
            count = sampling.logprobs or 0
            most_told = self.programs.num_logprobs
            logprobs = tuple(logprobs_of(details[i], count, most_told) for i in range(len(gained)))
            ending = None if stop is None else logprobs_of(details[len(gained)], count, most_told)
        if reason is None:
            self._tell(sequence, Output(request_id=sequence.request.id, token_ids=tuple(gained), logprobs=logprobs))
        else:
            told = {"stop_token_id": stop, "stop_logprob": ending, "error": error, "is_refused": refused}
            self._finish(sequence, reason, token_ids=tuple(gained), logprobs=logprobs, **told)

    def _keep_prompt_logprobs(self, chunks: SequenceOf[Chunk], told: np.ndarray) -> None:
        tokens = self.programs.shapes.prefill_sizes[-1]
        for row, chunk in enumerate(chunks):
            if not chunk.sequence.finished:
                self._keep_logprobs_of(chunk, told[row * tokens : (row + 1) * tokens])

    def _keep_logprobs_of(self, chunk: Chunk, told: np.ndarray) -> None:
        sequence, most = chunk.sequence, self.programs.num_logprobs
        count = sequence.request.sampling.prompt_logprobs or 0
        if sequence.prompt_logprobs is None:
            # Nothing comes before the first token that could have foretold it.
            sequence.prompt_logprobs = [None]
        if len(sequence.prompt_logprobs) != chunk.start + 1:
            return  # Told before it was preempted.
        after = min(chunk.start + chunk.count, sequence.prompt_length - 1)
        kept: list[TokenLogprobs | None] = [logprobs_of(told[i], count, most) for i in range(after - chunk.start)]
        sequence.prompt_logprobs += kept

    def _finish(self, sequence: Sequence, reason: FinishReason, **gained: Any) -> None:
        if self._drop(sequence, reason):
            self._tell(sequence, Output(request_id=sequence.request.id, finish_reason=reason, **gained))

    def _drop(self, sequence: Sequence, reason: FinishReason) -> bool:
        """Lets a sequence go; returns False where it had gone before."""
        if sequence.finished:
            return False
        if sequence.keeps_pages and reason in ("stop", "length"):
            self.scheduler.hold(sequence)
        self.scheduler.remove(sequence)
        if sequence.seat is not None and self.bank is not None:
            self.bank.leave(sequence.seat)
        del self.sequences[sequence.request.id]
        self.finished[reason] += 1
        return True

    def _tell(self, sequence: Sequence, output: Output) -> None:
        if not sequence.told_cached:
            sequence.told_cached = True
            told = None
            if sequence.request.sampling.prompt_logprobs is not None:
                told = tuple(sequence.prompt_logprobs or [None])
            first = {"cached_tokens": sequence.cached_tokens, "scheduled_at": sequence.scheduled_at}
            output = dataclasses.replace(output, prompt_logprobs=told, **first)
        if not self._report(sequence.on_output, output):
            self._drop(sequence, "error")

    def _report(self, on_output: OnOutput, output: Output) -> bool:
        """Calls whoever asked; returns False where that raised."""
        try:
            on_output(output)
        except Exception:
            # It may not raise; if it does all the same, nobody else's request shall pay for it.
            logger.exception("the callback of request %s raised; the request is dropped", output.request_id)
            return False
        return True


def _of_grammar(error: Exception) -> str:
    """Returns what to tell of a grammar that raised; one of a stranger's may raise anything."""
    if not isinstance(error, UsageError):
        logger.error("a grammar raised", exc_info=error)
    return str(error) if isinstance(error, UsageError) else f"the grammar failed ({type(error).__name__}: {error})"


def _sent(
    rows: list[tuple[Sequence, int]], ids: Any, details: Any, told: Any = None, chunks: SequenceOf[Chunk] = ()
) -> _Sent:
    for array in (ids, details, told):
        if array is not None:
            array.copy_to_host_async()
    return _Sent(rows, ids, details, told, chunks)


def _is_told(chunk: Chunk) -> bool:
    """Returns whether the log-probabilities of a chunk's tokens are wanted."""
    sequence = chunk.sequence
    return sequence.request.sampling.prompt_logprobs is not None and chunk.start < sequence.prompt_length - 1
