"""An engine without a model: real threads, a bounded queue, a pool of places, and texts that follow from the prompt.

It goes on with the prompt's own ids, from the start, over and over: what a request should get can be written down.
"""

import itertools
import threading
import time

import numpy as np
from kanawa.errors import UsageError
from kanawa_runtime.serve.engine.request import (
    EngineLimits,
    EngineStoppedError,
    Output,
    QueueFullError,
    RequestError,
    TokenLogprobs,
)


class Running:
    def __init__(self, request, on_output):
        self.request, self.on_output = request, on_output
        # Special ids are no part of what it repeats, but of an empty text.
        text = [i for i in request.prompt_ids if i < 256] or [ord("x")]
        self.script = itertools.islice(itertools.cycle(text), request.sampling.max_tokens)
        self.count = 0
        self.started = False


class ScriptedEngine:
    """`step_seconds` a token for all that run; `places` of them at once, `max_queued` wait.

    It starts once `may_start` is set, and steps while `may_step` is: a test holds it there for as long as it looks.
    """

    def __init__(self, *, places=4, max_queued=8, step_seconds=0.0, max_length=512, fails=None):
        self.limits = EngineLimits(
            max_sequences=places, max_length=max_length, max_queued=max_queued, vocab_size=320, max_logprobs=20
        )
        self.step_seconds, self.fails = step_seconds, fails
        self.may_start, self.may_step = threading.Event(), threading.Event()
        self.may_start.set()
        self.may_step.set()
        self.loaded, self.broken, self.submitted = [], None, []
        self.ended = {}
        self._lock = threading.Condition()
        self._queue, self._running, self._cancelled = [], {}, set()
        self._draining = self._stopped = False
        self._thread = threading.Thread(target=self._work, daemon=True)

    @property
    def is_alive(self):
        return self._thread.is_alive() and self.broken is None

    def start(self):
        self.may_start.wait(60)
        if self.fails:
            raise self.fails
        self._thread.start()

    def check_room(self):
        with self._lock:
            self._check_room()

    def _check_room(self):
        if self.broken:
            raise EngineStoppedError(self.broken, 1.0)
        if self._draining or len(self._queue) >= self.limits.max_queued:
            message = f"{len(self._queue)} requests wait already, as many as may (max_queued)"
            raise QueueFullError(message, 2.0)

    def submit(self, request, on_output):
        if len(request.prompt_ids) + request.sampling.max_tokens > self.limits.max_length:
            message = "too long for the engine"
            raise RequestError(message, "prompt")
        with self._lock:
            self._check_room()
            self.submitted.append(request)
            self._queue.append(Running(request, on_output))
            self._lock.notify()

    def cancel(self, request_id):
        with self._lock:
            self._cancelled.add(request_id)
            self._lock.notify()

    def stats(self):
        with self._lock:
            return {
                "num_requests_running": float(len(self._running)),
                "num_requests_waiting": float(len(self._queue)),
                "num_preemptions_total": 0.0,
            }

    def load(self, params, state=None):
        self.loaded.append((params, state))

    def drain(self, seconds):
        end = time.monotonic() + seconds
        with self._lock:
            self._draining = True
        while time.monotonic() < end:
            with self._lock:
                if not self._queue and not self._running:
                    return True
            time.sleep(0.005)
        return False

    def stop(self):
        with self._lock:
            self._stopped = True
            self._lock.notify()
        self._thread.join(5)

    @property
    def places_used(self):
        with self._lock:
            return len(self._queue) + len(self._running)

    def _work(self):
        while True:
            with self._lock:
                while not self._queue and not self._running and not self._stopped:
                    self._lock.wait()
                if self._stopped:
                    for one in [*self._queue, *self._running.values()]:
                        self._end(one, "abort")
                    return
                self._queue.sort(key=lambda one: one.request.priority)
                while self._queue and len(self._running) < self.limits.max_sequences:
                    one = self._queue.pop(0)
                    self._running[one.request.id] = one
                now, cancelled = time.monotonic(), self._cancelled
                self._cancelled = set()
                for one in [o for o in self._queue if o.request.id in cancelled]:
                    self._queue.remove(one)
                    self._end(one, "abort")
                running = list(self._running.values())
            held = not self.may_step.is_set()
            for one in running:
                late = one.request.deadline is not None and now > one.request.deadline
                if one.request.id in cancelled or late:
                    self._end(one, "abort")
                elif not held:
                    self._step(one, now)
            if self.step_seconds or held:
                time.sleep(self.step_seconds or 0.001)

    def _step(self, one, now):
        request, sampling = one.request, one.request.sampling
        first = {}
        if not one.started:
            one.started = True
            first = {"scheduled_at": now, "cached_tokens": len(request.prompt_ids) // 16 * 16}
            if sampling.prompt_logprobs is not None:
                known = [self._logprobs(i, sampling.prompt_logprobs) for i in request.prompt_ids[1:]]
                first["prompt_logprobs"] = (None, *known)
        token = next(one.script, None)
        complete = False
        if sampling.grammar is not None and token is not None:
            try:
                token, complete = self._by_grammar(sampling)
            except UsageError as error:
                return self._end(one, "error", error=str(error), is_refused=True, **first)
        if token is None or (token in sampling.stop_token_ids and one.count >= sampling.min_tokens):
            reason = "length" if token is None else "stop"
            return self._end(one, reason, stop_token_id=token, **first)
        one.count += 1
        gained = {"token_ids": (token,)}
        if sampling.logprobs is not None:
            gained["logprobs"] = (self._logprobs(token, sampling.logprobs),)
        if complete or one.count >= sampling.max_tokens:
            return self._end(one, "stop" if complete else "length", **gained, **first)
        one.on_output(Output(request_id=request.id, **gained, **first))
        return None

    def _by_grammar(self, sampling):
        bits = np.unpackbits(sampling.grammar.allowed().view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits)
        stop = [int(i) for i in allowed if i in sampling.stop_token_ids]
        if stop:
            return stop[0], False
        # Quotes and brackets end things; letters and blanks go on for ever.
        likely = [i for i in b'"}]{[:,' if i in allowed] or [int(i) for i in allowed if i > 32] or [int(allowed[0])]
        return likely[0], sampling.grammar.accept(likely[0])

    def _logprobs(self, token, number):
        top = [(token, -0.5), *((i, -2.0 - i) for i in range(1, number))]
        return TokenLogprobs(logprob=-0.5, rank=1, top=tuple(top[:number]))

    def _end(self, one, reason, **more):
        self._running.pop(one.request.id, None)
        self.ended[one.request.id] = reason
        one.on_output(Output(request_id=one.request.id, finish_reason=reason, **more))
