"""A server from its first socket to its last answer: ready once the engine is, drained when it is stopped."""

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import uvicorn
from kanawa.errors import UsageError

from kanawa_runtime.serve.http.access import Hosts, Keys
from kanawa_runtime.serve.http.app import application
from kanawa_runtime.serve.http.config import ServerConfig
from kanawa_runtime.serve.http.connections import uvicorn_options
from kanawa_runtime.serve.http.route import Routes
from kanawa_runtime.serve.http.served_model import ServedModel
from kanawa_runtime.serve.http.service import Service

logger = logging.getLogger(__name__)

#: After an engine has been stopped, for handlers to send their last outputs.
_FLUSH_SECONDS = 3.0
_BACKLOG = 2048


def listening_socket(host: str, port: int) -> socket.socket:
    """Returns a socket that listens; raises UsageError where the address isn't this machine's, or in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        # Python's own text says twice where it tried to listen.
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        message = f"can't listen at {host}:{port}: {reason}; choose another with --port (0 takes any that is free)"
        raise UsageError(message) from error


class HttpServer:
    """Serves a model on a socket. `run` returns the exit code; `stop`, from any thread, is what SIGTERM does."""

    def __init__(
        self,
        model: ServedModel,
        config: ServerConfig,
        keys: Keys,
        listening: socket.socket,
        on_ready: Callable[[], None] = lambda: None,
        further: Routes | None = None,
    ) -> None:
        """`further` are routes beside those of every server."""
        self._model = model
        self._config = config.clone().freeze()
        self._keys = keys
        self._socket = listening
        self._on_ready = on_ready
        self._further = further
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        #: Whether the engine had started when the server ended: otherwise a compiler still runs in its thread.
        self.has_started = False
        #: In the loop's thread, once it runs; for tests.
        self.service: Service | None = None

    def run(self) -> int:
        """Serves until `stop`; returns 0, and raises the error of an engine that can't start."""
        return asyncio.run(self._run())

    def stop(self) -> None:
        """Begins to drain."""
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stopping.set)

    async def _run(self) -> int:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        config, keys = self._config, self._keys
        hosts = Hosts(self._socket.getsockname()[0], config.allowed_hosts, with_keys=keys.are_required)
        service = self.service = Service(self._model, config, keys, hosts)
        refused = functools.partial(service.metrics.count_response, "malformed")
        server = _Uvicorn(uvicorn.Config(application(service, self._further), **uvicorn_options(self._config, refused)))
        with self._signals():
            serving = asyncio.create_task(server.serve(sockets=[self._socket]))
            stopping = asyncio.create_task(self._stopping.wait())
            starting = self._start_engine()
            try:
                await asyncio.wait((starting, stopping, serving), return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    starting.result()
                    self.has_started = True
                    if not stopping.done():
                        service.phase = "ready"
                        self._on_ready()
                    await asyncio.wait((stopping, serving), return_when=asyncio.FIRST_COMPLETED)
                    await self._drain(service)
            finally:
                server.should_exit = True
                await serving
                service.close()
        return 0

    def _start_engine(self) -> "asyncio.Future[None]":
        """Starts the engine in a daemon thread: a compiler can't be interrupted."""
        loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = loop.create_future()

        def set_started(error: BaseException | None) -> None:
            if not started.done():
                started.set_result(None) if error is None else started.set_exception(error)

        def start() -> None:
            failure: BaseException | None = None
            try:
                self._model.engine.start()
            except Exception as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(set_started, failure)

        threading.Thread(target=start, name="kanawa-engine-start", daemon=True).start()
        return started

    async def _drain(self, service: Service) -> None:
        """Refuses new requests, lets the others finish, and ends those that take longer than `drain_seconds`."""
        service.phase = "draining"
        engine, seconds = self._model.engine, self._config.drain_seconds
        logger.info("draining: %d requests run", service.running)
        drained = await asyncio.to_thread(engine.drain, seconds)
        if not drained:
            logger.warning("ended %d requests that took longer than drain_seconds=%g", service.running, seconds)
        await asyncio.to_thread(engine.stop)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                while service.running:
                    await asyncio.sleep(0.02)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Drains at the first SIGTERM or Ctrl-C while the block lasts, and ends the process at the second."""
        if threading.current_thread() is not threading.main_thread() or self._loop is None:
            yield
            return

        def answer(number: int) -> None:
            if self._stopping is None or self._stopping.is_set():
                sys.stdout.flush()
                sys.stderr.flush()
                # Threads of the engine and of a compiler would prevent Python's exit.
                os._exit(128 + number)
            self._stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, answer, number)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.remove_signal_handler(number)


class _Uvicorn(uvicorn.Server):
    """Uvicorn without its own signal handlers, which close the socket first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures nothing."""
        yield


class Sparing(logging.Filter):
    """Lets through `most` records of each line of code within `seconds`; the next one says how many were dropped."""

    def __init__(self, most: int = 10, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most = most
        self._seconds = seconds
        self._clock = clock
        #: By line of code: since when, how many were written, how many dropped.
        self._seen: dict[tuple[str, int], tuple[float, int, int]] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a record is written."""
        # What is said differs with each request; where it is said doesn't.
        place, now = (record.pathname, record.lineno), self._clock()
        with self._lock:
            since, written, dropped = self._seen.get(place, (now, 0, 0))
            if now - since >= self._seconds:
                since, written = now, 0
            if written >= self._most:
                self._seen[place] = since, written, dropped + 1
                return False
            self._seen[place] = since, written + 1, 0
        if dropped:
            record.msg = f"{record.getMessage()} ({dropped:,} more like it were dropped)"
            record.args = ()
        return True


def spare_logs() -> None:
    """Has the handlers of this process write sparingly."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(Sparing())
