"""The engine that decodes prompts which another one has prefilled, and its connection to the other one."""

import dataclasses
import logging
import secrets
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from kanawa.errors import KanawaError, UsageError

from kanawa_runtime.serve.disaggregated.wire import Wire, WireError, output_of, request_message
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.page_transfer import PageShapes
from kanawa_runtime.serve.engine.request import (
    EngineLimits,
    OnOutput,
    Output,
    QueueFullError,
    RemotePrefill,
    Request,
    RequestError,
)


class TcpConnector:
    """A connection a prompt: the request is sent, the first token and the pages come back, and a receipt ends it.

    May be used by several threads at once.
    """

    def __init__(self, host: str, port: int, token: bytes, *, timeout: float = 60.0) -> None:
        self._address, self._token, self._timeout = (host, port), token, timeout

    def check_layout(self, layout: str, adapter: str | None = None) -> None:
        """Raises WireError where no engine listens, UsageError where its pages have another layout."""
        where = f"the server at {self._address[0]}:{self._address[1]} can't prefill prompts for this one"
        with self._connected() as connection:
            wire = Wire(connection, self._token, listens=False, timeout=self._timeout)
            try:
                wire.send({"hello": True})
                wire.send({"layout": layout, "adapter": adapter})
                header, _ = wire.receive()
            except WireError as error:
                # It has greeted, so it takes connections: it rejects this one's signature.
                message = f"{where}: it hung up ({error}); give both the same --pages-token-file"
                raise UsageError(message) from error
        if "refused" in header:
            message = (
                f"{where}: {str(header['refused'])[:500]}; start both with the same run, step, adapters and engine "
                "options"
            )
            raise UsageError(message)

    def prefill(
        self, request: Request, seed: int, layout: str, shapes: PageShapes, gone: threading.Event
    ) -> RemotePrefill:
        """Returns the other engine's first output and, where there is more to come, its pages.

        The other engine's pages are free once this returns or raises. Stops when `gone` is set. Raises WireError where
        the other engine can't be reached, or doesn't answer.
        """
        # Closing the connection frees the pages there, whatever happens here.
        with self._connected() as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire = Wire(connection, self._token, listens=False, timeout=self._timeout)
            # First a few bytes that prove the token: before them the other engine reads nothing long.
            wire.send({"hello": True})
            wire.send({"layout": layout, "request": request_message(request, seed)})
            wire.await_frame(gone)
            header, _ = wire.receive()
            if "refused" in header:
                message = f"the other engine refused: {str(header['refused'])[:500]}"
                raise WireError(message)
            first = output_of(request.id, header.get("first") or {})
            arrays = [_receive_array(wire, header.get("pages"), *one) for one in shapes] if header.get("pages") else []
            wire.send({"received": True})
        return RemotePrefill(first, arrays, layout)

    def _connected(self) -> socket.socket:
        try:
            return socket.create_connection(self._address, timeout=min(self._timeout, 5.0))
        except OSError as error:
            message = f"no engine can be reached at {self._address[0]}:{self._address[1]}: {error}"
            raise WireError(message) from error


def _receive_array(wire: Wire, pages: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if not isinstance(pages, int) or not 0 < pages < 2**31:
        message = f"{pages!r} pages were announced"
        raise WireError(message)
    size = pages * int(np.prod(shape)) * dtype.itemsize
    _, payload = wire.receive(max_payload=size)
    if len(payload) != size:
        message = f"an array of {len(payload)} bytes came, expected {size}"
        raise WireError(message)
    return np.frombuffer(payload, dtype).reshape(pages, *shape)


logger = logging.getLogger(__name__)


class DecodeEngine:
    """Implements `request.Engine`. A prompt that the other engine doesn't prefill is prefilled here: none is lost.

    `at_once` prompts are transferred at a time. Requests with a grammar or pictures are prefilled here, as these
    don't travel.
    """

    def __init__(self, engine: LLMEngine, connector: TcpConnector, *, at_once: int = 8) -> None:
        """Raises UsageError without `transfers_pages` in the engine's config."""
        engine.pages_layout()
        self._engine, self._connector = engine, connector
        self._workers = ThreadPoolExecutor(at_once, thread_name_prefix="kanawa-transfer")
        self._lock = threading.Lock()
        self._in_transfer: dict[str, tuple[threading.Event, OnOutput]] = {}
        self._is_draining = False
        self.transfers = self.failures = self.bytes = 0

    @property
    def limits(self) -> EngineLimits:
        """Its sizes."""
        return self._engine.limits

    @property
    def is_alive(self) -> bool:
        """Whether it serves; the other engine isn't needed for that."""
        return self._engine.is_alive

    def start(self) -> None:
        """Compiles and begins to serve."""
        self._engine.start()

    def submit(self, request: Request, on_output: OnOutput) -> None:
        """Queues a request; raises as every engine does."""
        self._engine.check_request(request)
        if request.sampling.grammar is None and request.sampling.seed is None:
            # Drawn here, as both engines draw by it.
            sampling = dataclasses.replace(request.sampling, seed=secrets.randbits(63))
            request = dataclasses.replace(request, sampling=sampling)
        gone = threading.Event()
        with self._lock:
            if request.id in self._in_transfer:
                message = f"a request with the id {request.id!r} is running already; give each its own"
                raise RequestError(message, "id")
            self._check_room()
            if request.sampling.grammar is not None or request.pictures:
                self._engine.submit(request, on_output)
                return
            self._engine.check_id(request.id)
            self._in_transfer[request.id] = gone, on_output
        self._workers.submit(self._prefill, request, on_output, gone)

    def check_room(self) -> None:
        """Raises QueueFullError where any request would be refused now."""
        with self._lock:
            self._check_room()

    def _check_room(self) -> None:
        if self._is_draining:
            message = (
                f"the engine is draining, with {len(self._in_transfer)} prompts in transfer, and takes no more requests"
            )
            raise QueueFullError(message, 1.0)
        # A request accepted here must find room there: refused later, it would be lost.
        self._engine.check_room(also=len(self._in_transfer))

    def _prefill(self, request: Request, on_output: OnOutput, gone: threading.Event) -> None:
        remote = None
        try:
            if not gone.is_set():
                seed, layout = request.sampling.seed or 0, self._engine.pages_layout(request.adapter)
                remote = self._connector.prefill(request, seed, layout, self._engine.page_shapes, gone)
                self.transfers += 1
                self.bytes += sum(array.nbytes for array in remote.arrays)
        except WireError as error:
            self.failures += not gone.is_set()
            logger.warning("request %s is prefilled here: %s", request.id, error)
        except Exception:
            # No caller sees the exception of a worker.
            self.failures += 1
            logger.exception("request %s is prefilled here", request.id)
        with self._lock:
            if self._in_transfer.pop(request.id, None) is None:
                return  # Cancelled, with its last output.
            try:
                self._continue(request, on_output, remote)
            except Exception as error:
                # Without an output the request would wait for ever.
                if not isinstance(error, KanawaError):
                    logger.exception("request %s couldn't be continued", request.id)
                on_output(Output(request_id=request.id, finish_reason="error", error=str(error)))

    def _continue(self, request: Request, on_output: OnOutput, remote: RemotePrefill | None) -> None:
        is_last = request.sampling.max_tokens == 1 or len(request.prompt_ids) + 1 >= self.limits.max_length
        if remote is not None and (remote.first.finish_reason == "stop" or is_last):
            on_output(remote.first)
        else:
            self._engine.submit(request, on_output, remote_prefill=remote)

    def cancel(self, request_id: str) -> None:
        """Ends a request as "abort", wherever it is; an unknown id is ignored."""
        with self._lock:
            in_transfer = self._in_transfer.pop(request_id, None)
        if in_transfer is None:
            self._engine.cancel(request_id)
            return
        gone, on_output = in_transfer
        gone.set()
        on_output(Output(request_id=request_id, finish_reason="abort"))

    def stats(self) -> Mapping[str, float]:
        """Returns the engine's own, and those of transfers."""
        own = dict(self._engine.stats())
        own["num_requests_waiting"] += len(self._in_transfer)
        return own | {
            "kv_transfer_prompts": self.transfers,
            "kv_transfer_failures": self.failures,
            "kv_transfer_bytes": self.bytes,
        }

    def load(self, params: object, state: object = None) -> None:
        """Takes other weights; the other engine has to take them too, or all prompts are prefilled here."""
        self._engine.load(params, state)

    def drain(self, seconds: float) -> bool:
        """Refuses new requests and waits for the others; returns whether all ended in time."""
        with self._lock:
            self._is_draining = True
        waited = threading.Event()
        left = seconds
        while self._in_transfer and left > 0:
            waited.wait(0.05)
            left -= 0.05
        return not self._in_transfer and self._engine.drain(max(0.0, left))

    def stop(self) -> None:
        """Ends running requests as "abort", and the threads."""
        for request_id in list(self._in_transfer):
            self.cancel(request_id)
        self._workers.shutdown(wait=True, cancel_futures=True)
        self._engine.stop()
