"""Sends a workload to a server as it is timed, not as answers allow, and gathers what comes back."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from kanawa_runtime.serve.bench.client import Answered, Endpoint, stream
from kanawa_runtime.serve.bench.workload import Asked


async def run(
    endpoint: Endpoint,
    asked: Sequence[Asked],
    times: Sequence[float],
    *,
    body: Callable[[Asked], dict[str, Any]],
    max_concurrency: int | None = None,
) -> tuple[list[Answered], float]:
    """Returns the answers in order, and the seconds from the first request to the last answer.

    Each request is sent at its time, however many are still unanswered; `max_concurrency` holds back those beyond it,
    and how long one was held back is in `queued`.
    """
    gate: Any = contextlib.nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    answers = [Answered(0.0, one.prompt_tokens) for one in asked]
    began = time.perf_counter()

    async def send(one: Asked, at: float, answered: Answered) -> None:
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        due = time.perf_counter()
        async with gate:
            answered.queued = time.perf_counter() - due
            await stream(endpoint, body(one), answered)

    await asyncio.gather(*(send(*each) for each in zip(asked, times, answers, strict=True)))
    return answers, time.perf_counter() - began
