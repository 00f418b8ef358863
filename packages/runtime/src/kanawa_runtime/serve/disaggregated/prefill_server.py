"""The engine that prefills prompts for another one: it listens, computes, sends its pages, and always frees them."""

import logging
import queue
import socket
import threading
from typing import Any

import numpy as np
from kanawa.errors import KanawaError, UsageError

from kanawa_runtime.serve.disaggregated.wire import Wire, WireError, output_message, request_of
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.request import Output

logger = logging.getLogger(__name__)

#: How often the connection is checked.
_LOOK_SECONDS = 0.05
_BACKLOG = 128
#: Of a frame without content.
_MAX_HELLO_BYTES = 1024


class PrefillServer:
    """Serves an engine's prefill at an address; start the engine first.

    Pages are held from a prompt's last token until the receipt, the end of the connection, or `expiry` seconds without
    a message: a peer that dies, or stops reading, holds none.
    """

    def __init__(
        self, engine: LLMEngine, token: bytes, *, host: str = "127.0.0.1", port: int = 0, expiry: float = 30.0,
        at_once: int = 64, hello_seconds: float = 5.0,
    ) -> None:  # fmt: skip
        """Binds at once; `port` 0 takes any. Raises UsageError without `transfers_pages` in the engine's config.

        More than `at_once` connections are closed. A connection may send only a few bytes until it has proved the
        token, within `hello_seconds`.
        """
        engine.pages_layout()
        if not token:
            message = "an empty token protects nothing; give both engines the same secret"
            raise UsageError(message)
        self._engine, self._token, self._expiry = engine, token, expiry
        self._at_once, self._hello_seconds = at_once, hello_seconds
        self.rejected = 0
        self._listening = socket.create_server((host, port), backlog=_BACKLOG)
        self._listening.settimeout(0.2)
        self._stopping = threading.Event()
        # Another engine's ids may equal this one's.
        self._count = 0
        self._threads: set[threading.Thread] = set()
        self._accepting = threading.Thread(target=self._accept, name="kanawa-prefill", daemon=True)
        self._accepting.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listening.getsockname()[1])

    def stop(self) -> None:
        """Closes the socket, and frees held pages; the engine continues."""
        self._stopping.set()
        self._accepting.join()
        self._listening.close()
        for thread in list(self._threads):
            thread.join()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError as error:
                logger.warning("a connection couldn't be accepted: %s", error)
                self._stopping.wait(0.1)
                continue
            if len(self._threads) >= self._at_once:
                # The other engine prefills the prompt itself then, which is better than waiting here.
                self.rejected += 1
                logger.warning("a connection is rejected: %d are open, the limit", self._at_once)
                connection.close()
                continue
            self._count += 1
            name = f"prefill-{self._count}"
            thread = threading.Thread(target=self._serve, args=(connection, name), name=name, daemon=True)
            self._threads.add(thread)
            thread.start()

    def _serve(self, connection: socket.socket, name: str) -> None:
        with connection:
            try:
                wire = Wire(connection, self._token, listens=True, timeout=self._expiry)
                wire.receive(max_header=_MAX_HELLO_BYTES, within=self._hello_seconds)
                header, _ = wire.receive(within=self._expiry)
                self._answer(wire, header, name)
            except WireError as error:
                logger.info("%s: %s", name, error)
            except KanawaError as error:
                logger.warning("%s: %s", name, error)
            finally:
                # However it ended: an unknown request, or pages that aren't held, are ignored.
                self._engine.cancel(name)
                self._engine.release_pages(name)
                self._threads.discard(threading.current_thread())

    def _answer(self, wire: Wire, header: dict[str, Any], name: str) -> None:
        engine, message = self._engine, header.get("request")
        fields = {**message, "id": name} if isinstance(message, dict) else {}
        named = fields.get("adapter", header.get("adapter"))
        adapter = None if named is None else str(named)
        outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        try:
            if header.get("layout") != engine.pages_layout(adapter):
                wire.send({"refused": _other_layout(adapter)})
                return
            if message is None:
                wire.send({"agrees": True})
                return
            request = request_of(fields)
            engine.submit(request, outputs.put, hold_pages=True)
        except (UsageError, TypeError, ValueError) as error:  # the last two of fields of a wrong kind
            wire.send({"refused": str(error)})
            return
        output = self._output(wire, outputs)
        if output.finish_reason in ("abort", "error"):
            wire.send({"refused": output.error or "the request was ended"})
            return
        arrays = engine.export_pages(name) if output.finish_reason == "length" else []
        wire.send({"first": output_message(output), "pages": arrays[0].shape[0] if arrays else 0})
        for array in arrays:
            # As bytes: bfloat16 arrays offer no buffer of their own type.
            wire.send({}, memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data))
        wire.receive(max_header=_MAX_HELLO_BYTES, within=self._expiry)

    def _output(self, wire: Wire, outputs: "queue.SimpleQueue[Output]") -> Output:
        while not self._stopping.is_set():
            try:
                return outputs.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if wire.is_gone():
                    break
        message = "the other engine is gone"
        raise WireError(message)


def _other_layout(adapter: str | None) -> str:
    needed = "one model, the same weights, page_size and dtype"
    if adapter is not None:
        needed += f", and in adapter {adapter!r} the same numbers"
    return f"its pages have another layout: both engines need {needed}"
