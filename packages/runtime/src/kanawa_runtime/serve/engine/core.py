"""The engine without its thread: takes requests, runs steps, and emits outputs.

A step is sent to the device before the results of the one before it are read, so that the host works while the device
does. A sequence that turns out to have ended is then computed once more in vain, which changes nothing: no later
program writes its pages or slot before that.
"""

import collections
import dataclasses
import functools
import heapq
import itertools
import logging
import operator
import time
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
from kanawa.errors import UsageError

from kanawa_runtime.serve.engine.adapter_slots import AdapterSlots
from kanawa_runtime.serve.engine.in_flight import Sent, Step
from kanawa_runtime.serve.engine.page_transfer import PageTransfer
from kanawa_runtime.serve.engine.picture_tower import PictureTower
from kanawa_runtime.serve.engine.programs import Programs
from kanawa_runtime.serve.engine.request import FinishReason, OnOutput, Output, RemotePrefill, Request
from kanawa_runtime.serve.engine.rows import LOGPROBS, MASK, RANDOM, TABLES, UNIFORM
from kanawa_runtime.serve.engine.scheduler import Chunk, Scheduler, StepBatch, packed_chunks, packed_rows
from kanawa_runtime.serve.engine.sequence import Sequence, allowed_bits, logprobs_of, sampling_rows
from kanawa_runtime.serve.engine.shapes import grouped
from kanawa_runtime.serve.engine.speculator import Speculator
from kanawa_runtime.serve.engine.step_times import StepTimes
from kanawa_runtime.serve.engine.token_sampler import NOT_FINITE, NOTHING

logger = logging.getLogger(__name__)

#: Steps whose results are unread while the next one is sent.
_DEPTH = 1
#: Of a call's seconds, where a request that comes meanwhile could begin after it.
_OPEN_SHARE = 0.4
_FAULTS = {
    NOT_FINITE: "the model's numbers are no longer finite for this request, so no token can be chosen",
    NOTHING: "no token may follow: the allowed tokens, the biases and the bad words exclude each other",
}
#: Deadlines of requests that have ended, before they are removed.
_STALE_DEADLINES = 64


class EngineCore:
    """Sequences by request id, the scheduler and the programs; used by one thread only."""

    def __init__(
        self, programs: Programs, scheduler: Scheduler, max_length: int, adapters: AdapterSlots | None = None,
        speculator: Speculator | None = None, transfer: PageTransfer | None = None, call_seconds: float | None = None,
        tower: PictureTower | None = None,
    ) -> None:  # fmt: skip
        self.programs, self.scheduler = programs, scheduler
        self.adapters, self.speculator, self.transfer, self.tower = adapters, speculator, transfer, tower
        self.sequences: dict[str, Sequence] = {}
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.steps = 0
        #: Seconds of steps in which the host worked, and didn't wait for the device.
        self.host_seconds = 0.0
        self._working_since = 0.0
        self.finished: collections.Counter[str] = collections.Counter()
        self.max_length = max_length
        self._arrivals = 0
        self._in_flight: collections.deque[Step] = collections.deque()
        self._times, self._call_seconds = StepTimes(), call_seconds
        self._fused_steps = scheduler.fused_steps
        self._deadlines: list[tuple[float, int, Sequence]] = []
        #: Whether the last step had nothing to do: all waiting sequences need pages that are held.
        self.is_stuck = False

    @property
    def is_idle(self) -> bool:
        """Whether there are no requests."""
        return not self.sequences and not self._in_flight

    def add(
        self,
        request: Request,
        on_output: OnOutput,
        *,
        hold_pages: bool = False,
        remote_prefill: RemotePrefill | None = None,
    ) -> None:
        """Queues a checked request; if it still can't be admitted, it finishes with reason "error"."""
        sequence = lora_slot = None
        try:
            if request.adapter is not None and self.adapters is not None:
                lora_slot = self.adapters.acquire(request.adapter)
            sequence = Sequence.of(request, on_output, self._arrivals, lora_slot)
            self._add_sequence(sequence, hold_pages, remote_prefill)
        except Exception as error:
            if not isinstance(error, UsageError):
                logger.exception("request %s couldn't be admitted", request.id)
            text = f"the request couldn't be admitted: {error}"
            if sequence is not None and request.id in self.sequences:
                self._finish(sequence, "error", error=text)
                return
            if lora_slot is not None and self.adapters is not None:
                self.adapters.release(lora_slot)
            self.finished["error"] += 1
            _call(on_output, Output(request_id=request.id, finish_reason="error", error=text))

    def _add_sequence(self, sequence: Sequence, hold_pages: bool, remote_prefill: RemotePrefill | None) -> None:
        self._arrivals += 1
        self.sequences[sequence.request.id] = sequence
        sequence.hold_pages = hold_pages
        if self.tower is not None:
            self.tower.place(sequence)
        # Penalties, biases and masks of a token depend on each one before it: those sequences go one at a time.
        sequence.speculates = self.speculator is not None and not sequence.flags & (TABLES | MASK)
        self.prompt_tokens += sequence.prompt_length
        if sequence.request.deadline is not None:
            heapq.heappush(self._deadlines, (sequence.request.deadline, sequence.arrival, sequence))
        adapter = None if sequence.lora_slot is None else sequence.lora_slot.digest
        layout = None if self.transfer is None else self.transfer.layout_with(adapter)
        # Pages of older weights would be shared with later prompts too: such a prompt is prefilled here instead.
        if remote_prefill is not None and remote_prefill.layout == layout:
            first = remote_prefill.first
            sequence.tokens += first.token_ids
            sequence.remote_prefill, sequence.has_output = remote_prefill, True
            sequence.cached_tokens = first.cached_tokens
            self.generation_tokens += len(first.token_ids)
            self._emit(sequence, dataclasses.replace(first, finish_reason=None))
        if not sequence.finished:
            self.scheduler.add(sequence)

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
        if len(self._deadlines) > 2 * len(self.sequences) + _STALE_DEADLINES:
            # Those that ended in time would be stored until their deadline.
            self._deadlines = [entry for entry in self._deadlines if not entry[2].finished]
            heapq.heapify(self._deadlines)
        while self._deadlines and self._deadlines[0][0] <= time.monotonic():
            self._finish(heapq.heappop(self._deadlines)[2], "abort")

    def seconds_to_deadline(self) -> float | None:
        """Returns how long until a request's deadline passes; None where none has any."""
        return max(0.0, self._deadlines[0][0] - time.monotonic()) if self._deadlines else None

    def evict_prefixes(self) -> None:
        """Drops the contents of cached pages: other weights would have computed other ones."""
        # Between two steps: since the last one the host may have been idle.
        self._working_since = time.perf_counter()
        self.settle()
        self.scheduler.pool.evict_all()
        if self.tower is not None:
            self.tower.evict_all()
        for sequence in self.sequences.values():
            # What is computed from here on uses older pages, and may not be cached under the tokens' digests.
            sequence.num_cached_pages = 10**9 if sequence.slot >= 0 else 0
            sequence.remote_prefill = None

    def settle(self) -> None:
        """Waits for all that is being computed."""
        while self._in_flight:
            self._collect()

    def wait_until_due(self) -> None:
        """Returns when the next step has to be put together: what is asked until then is part of it."""
        if len(self._in_flight) == 1:
            (running,) = self._in_flight
            self._times.wait_until_due(running.kind, functools.partial(self._read_first_tokens, running))

    def _read_first_tokens(self, running: Step) -> bool:
        """Emits what chunks of prompts gained as soon as they are computed; returns whether the step has ended.

        A step computes them before it decodes, and the clients of first tokens wait longest.
        """
        while len(running.unread) > 1 and running.unread[0].chunks and running.unread[0].is_ready:
            self._working_since = time.perf_counter()
            self._read(running.unread.popleft())
            self._count_work()
        return running.has_ended()

    def step(self) -> None:
        """Sends the next step to the device, and reads the results of the one before it."""
        self._working_since = time.perf_counter()
        self._step()
        self._count_work()

    def _count_work(self) -> None:
        """Counts the host's work since it last waited, so that `stats` grow while a step runs."""
        now = time.perf_counter()
        self.host_seconds += now - self._working_since
        self._working_since = now

    def _step(self) -> None:
        self.expire()
        if self._call_seconds is not None and self._times.decode_seconds:
            steps = self._call_seconds / self._times.decode_seconds
            most, few = (max(1, min(self._fused_steps, int(share * steps))) for share in (1.0, _OPEN_SHARE))
            self.scheduler.fused_steps, self.scheduler.open_steps = most, few
        batch = self.scheduler.schedule(settled=not self._in_flight)
        if batch.is_starved:
            # The tokens of a preempted sequence have to be known, and some sequences may have ended.
            self.settle()
            batch = self.scheduler.schedule(settled=True)
        began = time.perf_counter()
        sent = self._send(batch)
        self._times.count_sending(time.perf_counter() - began)
        self.is_stuck = not (sent or self._in_flight or self.scheduler.running)
        if sent:
            self.steps += 1
            if not self._in_flight:
                self._times.begin()
            self._in_flight.append(Step.of(sent))
        if self._in_flight and (len(self._in_flight) > _DEPTH or not sent):
            self._collect()

    def _send(self, batch: StepBatch) -> list[Sent]:
        for sequence in batch.remote:
            self._write_remote_prefill(sequence)
        # First: a client that waits for its first token waits longest.
        sent = self._send_chunks(batch.chunks)
        if batch.decode:
            sent.append(self._send_decode(batch))
        if batch.verify:
            sent.append(self._send_verify(batch))
        return sent

    def _write_remote_prefill(self, sequence: Sequence) -> None:
        remote, sequence.remote_prefill = sequence.remote_prefill, None
        if remote is not None and self.transfer is not None:
            pages = sequence.pages[: remote.arrays[0].shape[0]]
            self.transfer.write_pages(pages, remote.arrays, sequence.slot, sequence.tokens[-1])
        self._write_sampling_rows(sequence)
        self.scheduler.cache_full_pages(sequence)

    def _write_sampling_rows(self, sequence: Sequence) -> None:
        if sequence.flags & TABLES:
            self.programs.write_sampling_rows(sequence.slot, *sampling_rows(sequence, self.programs.vocab))

    def _send_decode(self, batch: StepBatch) -> Sent:
        rows = batch.decode
        packed, flags = packed_rows(rows, self.programs.shapes, self.scheduler.table)
        details = None
        if self.programs.config.draws_only:
            uniforms = np.zeros((self.programs.config.fused_steps, packed.shape[0]), np.int32)
            for row, (sequence, steps) in enumerate(rows):
                uniforms[:steps, row] = sequence.uniforms(sequence.generated, steps)
            ids, details = self.programs.draw(packed, uniforms, batch.steps, flags)
            details = details if flags & LOGPROBS else None
            flags = 0
        else:
            ids, logits = self.programs.decode(packed, batch.steps)
        if flags:
            ids, details = self._sample([sequence for sequence, _ in rows], packed, logits, flags)
        for sequence, steps in rows:
            sequence.computed += steps
            sequence.pending += steps
        return Sent(rows, ids, details, steps=batch.steps)

    def _send_verify(self, batch: StepBatch) -> Sent:
        rows = [(sequence, 1 + len(guesses)) for sequence, guesses in batch.verify]
        packed, flags = packed_rows(rows, self.programs.shapes, self.scheduler.table)
        most = self.programs.speculation.count
        guessed = np.zeros((packed.shape[0], most), np.int32)
        uniforms = np.zeros((packed.shape[0], most + 1), np.int32)
        for index, (sequence, guesses) in enumerate(batch.verify):
            guessed[index, : len(guesses)] = guesses
            if sequence.flags & RANDOM:
                first = sequence.generated
                uniforms[index, : len(guesses) + 1] = [sequence.uniform(first + i) for i in range(len(guesses) + 1)]
            # It gains one token at least; how many is known with the results.
            sequence.pending += 1
        ids, details = self.programs.speculation.verify(packed, guessed, uniforms, flags)
        return Sent(rows, ids, details, guessed=[count - 1 for _, count in rows])

    def _collect_verified(self, sent: Sent, guessed: list[int]) -> None:
        ids = np.asarray(sent.ids).T.tolist()
        details = None if sent.details is None else np.asarray(sent.details)
        for row, (sequence, _) in enumerate(sent.rows):
            if sequence.finished:
                continue
            gained = [token for token in ids[row] if token != -1]
            sequence.pending -= 1
            # The pages behind hold wrong guesses, and are written over.
            sequence.computed += len(gained)
            if self.speculator is not None:
                self.speculator.count_accepted(guessed[row], len(gained) - 1)
            wanted = details is not None and sequence.request.sampling.logprobs is not None
            self._append_tokens(sequence, gained, details[row] if wanted and details is not None else None)

    def _sample(self, sequences: list[Sequence | None], packed: np.ndarray, logits: Any, flags: int) -> tuple[Any, Any]:
        """Draws tokens in place of the likeliest ones; their details are None if no row needs them."""
        for row, sequence in zip(packed, sequences, strict=False):
            if sequence is not None and sequence.flags & RANDOM:
                row[UNIFORM] = sequence.uniform(sequence.generated)
        mask = self._mask(sequences, packed.shape[0]) if flags & MASK else None
        ids, details = self.programs.sample(packed, logits, flags, mask)
        return ids, details if flags & LOGPROBS else None

    def _send_chunks(self, chunks: SequenceOf[Chunk]) -> list[Sent]:
        """Sends chunks of prompts, as many of them in one program as its rows hold."""
        rows, sent = self.programs.shapes.prefill_rows, []
        if self.tower is not None:
            self.tower.encode(chunks)
        # Those of one prompt stay in order: a call computes after the one before it.
        for scored, some in itertools.groupby(chunks, key=_is_scored):
            sizes = rows[:1] if scored else rows
            for few, count in grouped(list(some), sizes):
                sent.append(self._send_rows(few, count, scored=scored))
        return sent

    def _send_rows(self, chunks: SequenceOf[Chunk], count: int, *, scored: bool) -> Sent:
        packed, ids = packed_chunks(chunks, count, self.programs.shapes, self.scheduler, after=int(scored))
        seen = () if self.tower is None else self.tower.see(chunks, ids[:, :-1] if scored else ids)
        for chunk in chunks:
            if chunk.is_last:
                self._write_sampling_rows(chunk.sequence)
        prompt_details = None
        if scored:
            chosen, logits, prompt_details = self.programs.score(packed, ids, seen)
        else:
            chosen, logits = self.programs.prefill(packed, ids, seen)
        details, last = None, [chunk.sequence if chunk.is_last else None for chunk in chunks]
        flags = functools.reduce(operator.or_, (sequence.flags for sequence in last if sequence is not None), 0)
        if flags:
            chosen, details = self._sample(last, packed, logits, flags)
        for chunk in chunks:
            chunk.sequence.computed = chunk.start + chunk.count
            chunk.sequence.pending += chunk.is_last
            self.scheduler.cache_full_pages(chunk.sequence)
        rows = [(chunk.sequence, int(chunk.is_last)) for chunk in chunks]
        return Sent(rows, chosen, details, prompt_details, chunks)

    def _mask(self, sequences: list[Sequence | None], count: int) -> np.ndarray:
        words = -(-self.programs.vocab // 32)
        bits = np.full((count, words), -1, np.int32)
        for row, sequence in zip(bits, sequences, strict=False):
            if sequence is not None and sequence.flags & MASK:
                try:
                    row[:] = allowed_bits(sequence, words)
                except Exception as error:
                    # Its row is computed, and discarded.
                    self._finish(sequence, "error", error=_grammar_error(error), is_refused=True)
        return bits

    def _collect(self) -> None:
        """Reads the results of the oldest step."""
        step = self._in_flight.popleft()
        had_ended = step.has_ended()
        while step.unread:
            sent = step.unread.popleft()
            self._count_work()
            sent.ids.block_until_ready()
            self._working_since = time.perf_counter()
            if not step.unread:
                self._times.end(step.kind, exactly=not had_ended, decoded=step.decoded)
            self._read(sent)

    def _read(self, sent: Sent) -> None:
        """Appends what computed rows gained."""
        if sent.guessed is not None:
            self._collect_verified(sent, sent.guessed)
            return
        ids = np.asarray(sent.ids).T.tolist()
        details = None if sent.details is None else np.asarray(sent.details)
        if sent.prompt_details is not None:
            self._add_prompt_logprobs(sent.chunks, np.asarray(sent.prompt_details))
        for row, (sequence, count) in enumerate(sent.rows):
            if sequence.finished or not count:
                continue
            sequence.pending -= count
            own = None
            if details is not None and sequence.request.sampling.logprobs is not None:
                # [rows, details] of one token each, or [tokens, rows, details].
                own = details[row : row + 1] if details.ndim == 2 else details[:, row]
            self._append_tokens(sequence, ids[row][:count], own)

    def _append_tokens(self, sequence: Sequence, ids: list[int], details: np.ndarray | None) -> None:
        """Appends new tokens to a sequence and emits them; the first -1 or stop token ends them."""
        sampling, tokens = sequence.request.sampling, sequence.tokens
        most = min(sequence.prompt_length + sampling.max_tokens, self.max_length)
        gained: list[int] = []
        reason: FinishReason | None = None
        stop = error = None
        refused = False
        for token in ids:
            if token in _FAULTS:
                # Don't reuse this prefix: its cache may be corrupt.
                self.scheduler.evict_pages(sequence)
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
                reason, error, refused = "error", _grammar_error(refusal), True
                break
            if complete or len(tokens) >= most:
                reason = "stop" if complete else "length"
                break
        self.generation_tokens += len(gained)
        self.scheduler.cache_full_pages(sequence)
        logprobs = ending = None
        if details is not None:
            count, num = sampling.logprobs or 0, self.programs.num_logprobs
            logprobs = tuple(logprobs_of(details[i], count, num) for i in range(len(gained)))
            ending = None if stop is None else logprobs_of(details[len(gained)], count, num)
        if reason is None:
            self._emit(sequence, Output(request_id=sequence.request.id, token_ids=tuple(gained), logprobs=logprobs))
        else:
            at_end = {"stop_token_id": stop, "stop_logprob": ending, "error": error, "is_refused": refused}
            self._finish(sequence, reason, token_ids=tuple(gained), logprobs=logprobs, **at_end)

    def _add_prompt_logprobs(self, chunks: SequenceOf[Chunk], details: np.ndarray) -> None:
        tokens, num = self.programs.shapes.prefill_sizes[-1], self.programs.num_logprobs
        for row, chunk in enumerate(chunks):
            sequence, own = chunk.sequence, details[row * tokens :]
            if sequence.finished:
                continue
            count = sequence.request.sampling.prompt_logprobs or 0
            if sequence.prompt_logprobs is None:
                # Nothing comes before the first token that could predict it.
                sequence.prompt_logprobs = [None]
            # Otherwise it was preempted, and has them already.
            if len(sequence.prompt_logprobs) == chunk.start + 1:
                after = min(chunk.start + chunk.count, sequence.prompt_length - 1)
                sequence.prompt_logprobs += [logprobs_of(own[i], count, num) for i in range(after - chunk.start)]

    def _finish(self, sequence: Sequence, reason: FinishReason, **fields: Any) -> None:
        if self._remove(sequence, reason):
            self._emit(sequence, Output(request_id=sequence.request.id, finish_reason=reason, **fields))

    def _remove(self, sequence: Sequence, reason: FinishReason) -> bool:
        """Removes a sequence and frees what it holds; returns False where it was removed before."""
        if sequence.finished:
            return False
        if sequence.hold_pages and reason in ("stop", "length"):
            self.scheduler.hold_pages(sequence)
        self.scheduler.remove(sequence)
        if sequence.lora_slot is not None and self.adapters is not None:
            self.adapters.release(sequence.lora_slot)
        del self.sequences[sequence.request.id]
        self.finished[reason] += 1
        return True

    def _emit(self, sequence: Sequence, output: Output) -> None:
        """Passes an output to the request's callback; the first one carries what is known of the prompt."""
        if not sequence.has_output:
            sequence.has_output = True
            wanted = sequence.request.sampling.prompt_logprobs is not None
            output = dataclasses.replace(
                output,
                prompt_logprobs=tuple(sequence.prompt_logprobs or [None]) if wanted else None,
                cached_tokens=sequence.cached_tokens,
                scheduled_at=sequence.scheduled_at,
            )
        if not _call(sequence.on_output, output):
            self._remove(sequence, "error")


def _call(on_output: OnOutput, output: Output) -> bool:
    """Calls a request's callback; returns False where it raised."""
    try:
        on_output(output)
    except Exception:
        # It should not raise; if it does, other requests continue.
        logger.exception("the callback of request %s raised; the request is dropped", output.request_id)
        return False
    return True


def _grammar_error(error: Exception) -> str:
    """Returns the text for a grammar that raised; one from elsewhere may raise anything."""
    if not isinstance(error, UsageError):
        logger.error("a grammar raised", exc_info=error)
    return str(error) if isinstance(error, UsageError) else f"the grammar failed ({type(error).__name__}: {error})"


def _is_scored(chunk: Chunk) -> bool:
    """Returns whether the log-probabilities of a chunk's tokens are wanted."""
    sequence = chunk.sequence
    return sequence.request.sampling.prompt_logprobs is not None and chunk.start < sequence.prompt_length - 1
