"""What the engine adds to its own compiled step: rows that decode, beside the step's program in a bare loop."""

import dataclasses
import threading
import time
from typing import Any

import jax
import numpy as np
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.request import Request, SamplingParams
from kanawa_runtime.serve.engine.rows import LENGTH, NUM_TOKENS, PAGES, RANDOM, SLOT, STOPS, TEMPERATURE

#: Tokens of each prompt, and new ones.
_PROMPT, _NEW = 64, 160
_ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class Case:
    """So many rows, so many tokens of one call, and whether they are drawn in place of the likeliest ones."""

    rows: int
    steps: int
    drawn: bool = False


def compared(engine: LLMEngine, case: Case) -> dict[str, float]:
    """Returns tokens a second of the engine and of its step alone, and milliseconds of a step, and the host's of it.

    Medians of rounds that take turns; both decode the same number of rows over the same lengths.
    """
    scheduler, own = engine._core.scheduler, engine.config.fused_steps
    scheduler.fused_steps = case.steps
    try:
        taken = [(*_by_engine(engine, case), _alone(engine, case)) for _ in range(_ROUNDS)]
    finally:
        scheduler.fused_steps = own
    by_engine, host, raw = (float(np.median(values)) for values in zip(*taken, strict=True))
    return {"engine": by_engine, "raw": raw, "host_ms": 1e3 * host, "step_ms": 1e3 * case.rows / by_engine}


def _by_engine(engine: LLMEngine, case: Case) -> tuple[float, float]:
    """Returns tokens a second, and the host's seconds a token of each row, while all rows decode."""
    begun: set[str] = set()
    counted, ends, marks, ended = 0, 0, [], threading.Event()

    def on_output(output: Any) -> None:
        nonlocal counted, ends
        # A call's results are told row by row, the first row first: what is counted then are whole calls.
        if output.request_id == "row 0" and len(begun) == case.rows:
            marks.append((time.perf_counter(), counted, engine.stats()["engine_host_seconds"]))
        begun.add(output.request_id)
        counted += len(output.token_ids)
        ends += output.finish_reason is not None
        if ends == case.rows:
            ended.set()

    rng = np.random.default_rng(1)
    for index in range(case.rows):
        prompt = tuple(rng.integers(3, engine.limits.vocab_size, _PROMPT).tolist())
        sampling = SamplingParams(max_tokens=_NEW, temperature=1.0 if case.drawn else 0.0, seed=index)
        engine.submit(Request(id=f"row {index}", prompt_ids=prompt, sampling=sampling), on_output)
    ended.wait()
    (t0, n0, h0), (t1, n1, h1) = marks[0], marks[-1]
    return (n1 - n0) / (t1 - t0), (h1 - h0) * case.rows / (n1 - n0)


def _alone(engine: LLMEngine, case: Case) -> float:
    """Returns tokens a second of the compiled step, sent again and again without a look at its results."""
    programs, rows, steps = engine._programs, case.rows, case.steps
    width = programs.shapes.page_widths[-1]
    packed = np.zeros((rows, PAGES + width), np.int32)
    own = -(-(_PROMPT + _NEW) // engine.config.page_size)
    packed[:, PAGES : PAGES + own] = np.arange(rows * own).reshape(rows, own)
    packed[:, SLOT], packed[:, STOPS], packed[:, NUM_TOKENS] = np.arange(rows), -1, steps
    packed[:, TEMPERATURE] = np.float32(case.drawn).view(np.int32)
    calls = _NEW // steps

    def loop() -> float:
        began, ids = time.perf_counter(), None
        for call in range(calls):
            given = packed.copy()
            given[:, LENGTH] = _PROMPT + call * steps
            ids, logits = programs.decode(given, steps)
            if case.drawn:
                ids, _ = programs.sample(given, logits, RANDOM, None)
        jax.block_until_ready(ids)
        return rows * steps * calls / (time.perf_counter() - began)

    # On the engine's thread, whose state the program takes and gives.
    return engine._between_steps(loop)
