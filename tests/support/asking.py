"""Asks an engine many things at once and waits for all of it."""

import queue
from collections.abc import Iterable

from kanawa_runtime.serve.engine.request import Engine, Output, Request


def outputs_of(engine: Engine, requests: Iterable[Request], seconds: float = 300) -> dict[str, list[Output]]:
    """Submits requests together; returns by id what each was given, the last output being the one that ends it."""
    outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
    given: dict[str, list[Output]] = {}
    for request in requests:
        given[request.id] = []
        engine.submit(request, outputs.put)
    left = len(given)
    while left:
        output = outputs.get(timeout=seconds)
        given[output.request_id].append(output)
        left -= output.finish_reason is not None
    return given


def ids_of(outputs: Iterable[Output]) -> list[int]:
    """Returns the tokens of one request's outputs."""
    return [token for output in outputs for token in output.token_ids]
