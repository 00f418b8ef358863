"""What the engine adds to its own compiled step: rows that decode, beside the step's program in a bare loop."""

import threading
import time
from typing import Any

import jax
import numpy as np
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.request import Request, SamplingParams
from kanawa_runtime.serve.engine.rows import COUNT, LENGTH, PAGES, SLOT, STOPS

#: Tokens of each prompt, and new ones.
_PROMPT, _NEW = 64, 160
_ROUNDS = 3


def compared(engine: LLMEngine, rows: int) -> dict[str, float]:
    """Returns tokens a second of the engine and of its step alone, and milliseconds of a step, and the host's of it.

    Medians of rounds that take turns; both decode the same number of rows over the same lengths.
    """
    taken = [(_by_engine(engine, rows), _alone(engine, rows)) for _ in range(_ROUNDS)]
    by_engine, host, raw = (float(np.median(values)) for values in zip(*((*e, r) for e, r in taken), strict=True))
    return {"engine": by_engine, "raw": raw, "host_ms": 1e3 * host, "step_ms": 1e3 * rows / by_engine}


def _by_engine(engine: LLMEngine, rows: int) -> tuple[float, float]:
    """Returns tokens a second, and the host's seconds a token of each row, while all rows decode."""
    begun: set[str] = set()
    counted, marks, ended = [0], [], threading.Event()

    def mark() -> None:
        marks.append((time.perf_counter(), counted[0], engine.stats()["engine_host_seconds"]))

    def on_output(output: Any) -> None:
        if not marks and output.request_id not in begun:
            begun.add(output.request_id)
            if len(begun) == rows:
                mark()
        counted[0] += len(output.token_ids)
        if output.finish_reason is not None:
            if len(marks) == 1:
                mark()
            begun.discard(output.request_id)
            if not begun:
                ended.set()

    rng = np.random.default_rng(1)
    for index in range(rows):
        prompt = tuple(rng.integers(3, engine.limits.vocab_size, _PROMPT).tolist())
        sampling = SamplingParams(max_tokens=_NEW, temperature=0.0)
        engine.submit(Request(id=f"row {index}", prompt_ids=prompt, sampling=sampling), on_output)
    ended.wait()
    (t0, n0, h0), (t1, n1, h1) = marks
    return (n1 - n0) / (t1 - t0), (h1 - h0) * rows / (n1 - n0)


def _alone(engine: LLMEngine, rows: int) -> float:
    """Returns tokens a second of the compiled step, sent again and again without a look at its results."""
    programs, steps = engine._programs, engine.config.fused_steps
    width = programs.shapes.page_widths[-1]
    packed = np.zeros((rows, PAGES + width), np.int32)
    own = -(-(_PROMPT + _NEW) // engine.config.page_size)
    packed[:, PAGES : PAGES + own] = np.arange(rows * own).reshape(rows, own)
    packed[:, SLOT], packed[:, STOPS], packed[:, COUNT] = np.arange(rows), -1, steps
    calls = _NEW // steps

    def loop() -> float:
        began, ids = time.perf_counter(), None
        for call in range(calls):
            given = packed.copy()
            given[:, LENGTH] = _PROMPT + call * steps
            ids, _ = programs.decode(given, steps)
        jax.block_until_ready(ids)
        return rows * steps * calls / (time.perf_counter() - began)

    # On the engine's thread, whose state the program takes and gives.
    return engine._between_steps(loop)
