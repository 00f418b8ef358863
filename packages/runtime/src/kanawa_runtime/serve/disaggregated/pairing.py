"""Two servers, one of which prefills for the other, as the command line pairs them."""

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from kanawa.errors import UsageError
from kanawa.guarded_read import guarded_bytes

from kanawa_runtime.serve.disaggregated.engine import DecodeEngine, TcpConnector
from kanawa_runtime.serve.disaggregated.prefill_server import PrefillServer
from kanawa_runtime.serve.disaggregated.wire import WireError
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.request import Engine

logger = logging.getLogger(__name__)

_MAX_TOKEN_BYTES = 4096
_MIN_TOKEN_BYTES = 16


class Pairing:
    """The other server: at `source` if it prefills for this one, or asking at `listen` if this one prefills for it."""

    def __init__(self, token: bytes, listen: tuple[str, int] | None, source: tuple[str, int] | None) -> None:
        self.token, self.listen, self.source = token, listen, source
        self._server: PrefillServer | None = None

    def paired(self, engine: LLMEngine, adapters: Iterable[str]) -> Engine:
        """Returns the engine to serve with.

        Raises UsageError where it can't listen, or the other server's pages have another layout.
        """
        if self.listen is not None:
            host, port = self.listen
            try:
                self._server = PrefillServer(engine, self.token, host=host, port=port)
            except OSError as error:
                # Python's own text says twice where it tried to listen.
                reason = os.strerror(error.errno) if error.errno else error
                message = f"can't listen at {host}:{port} for the other server: {reason}; change --prefill-listen"
                raise UsageError(message) from error
        if self.source is None:
            return engine
        connector = TcpConnector(*self.source, self.token)
        try:
            for adapter in (None, *adapters):
                connector.check_layout(engine.pages_layout(adapter), adapter)
        except WireError as error:
            logger.warning("%s; until one is, prompts are prefilled here", error)
        return DecodeEngine(engine, connector)

    def stop(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.stop()


def pairing_of(listen: str | None, source: str | None, token_file: Path | None) -> Pairing | None:
    """Returns the pairing of the options, None without one; raises UsageError naming the option that is wrong."""
    if listen is None and source is None:
        if token_file is not None:
            message = "--pages-token-file is for --prefill-listen or --prefill-from, and there is neither"
            raise UsageError(message)
        return None
    if token_file is None:
        message = "two servers exchange pages only with a shared secret: give --pages-token-file FILE to both"
        raise UsageError(message)
    try:
        token = guarded_bytes(token_file, most=_MAX_TOKEN_BYTES).strip()
    except OSError as error:
        message = f"--pages-token-file {token_file} can't be read: {error.strerror or error}"
        raise UsageError(message) from error
    if len(token) < _MIN_TOKEN_BYTES:
        message = f"--pages-token-file {token_file} holds {len(token)} bytes, expected at least {_MIN_TOKEN_BYTES}"
        raise UsageError(message)
    return Pairing(token, _address(listen, "--prefill-listen"), _address(source, "--prefill-from"))


def _address(text: str | None, option: str) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535 or (option == "--prefill-from" and not host):
        wanted = "HOST:PORT" if option == "--prefill-from" else "[HOST:]PORT"
        message = f"{option} {text!r}: expected {wanted}, such as 127.0.0.1:9100"
        raise UsageError(message)
    return host.strip("[]") or "127.0.0.1", int(port)
