"""Waits for all outputs of some requests."""

import queue
from collections.abc import Sequence

from kanawa_runtime.serve.engine.request import Engine, EngineStoppedError, Output, Request

#: How often a wait checks that the engine is alive.
_CHECK_SECONDS = 1.0


def gather_outputs(engine: Engine, requests: Sequence[Request], outputs: "queue.SimpleQueue[Output]") -> list[Output]:
    """Returns each request's outputs as one, in order; raises EngineStoppedError where the engine ends before."""
    gathered = {request.id: Output(request_id=request.id) for request in requests}
    running = len(requests)
    while running:
        try:
            output = outputs.get(timeout=_CHECK_SECONDS)
        except queue.Empty:
            if not engine.is_alive and outputs.empty():
                message = f"the engine ended with {running} of {len(requests)} requests unanswered; its log says why"
                raise EngineStoppedError(message, _CHECK_SECONDS) from None
            continue
        gathered[output.request_id] = gathered[output.request_id].then(output)
        running -= output.finish_reason is not None
    return list(gathered.values())
