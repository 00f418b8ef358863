"""What the command line says of a second server: listen for one, or have prompts taken in by one."""

import dataclasses
import logging
import os
from collections.abc import Callable
from pathlib import Path

from kanawa.errors import UsageError
from kanawa.guarded_read import guarded_bytes

from kanawa_runtime.serve.disaggregated.connector import TcpConnector
from kanawa_runtime.serve.disaggregated.engine import DecodeEngine
from kanawa_runtime.serve.disaggregated.prefill_server import PrefillServer
from kanawa_runtime.serve.disaggregated.wire import WireError
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.http.served_model import ServedModel

logger = logging.getLogger(__name__)

_MOST_TOKEN_BYTES = 4096
_LEAST_TOKEN_BYTES = 16


@dataclasses.dataclass(frozen=True)
class Pairing:
    """Where another server listens, or this one for it."""

    token: bytes
    listen: tuple[str, int] | None
    source: tuple[str, int] | None

    def join(self, model: ServedModel) -> Callable[[], None]:
        """Puts a model's engine behind the pairing; returns what ends it.

        Raises UsageError where it can't listen, or the other server is there and its pages are others.
        """
        engine = model.engine
        assert isinstance(engine, LLMEngine)
        if self.source is not None:
            connector = TcpConnector(*self.source, self.token)
            try:
                for adapter in (None, *model.adapters):
                    connector.check(engine.pages_layout(adapter), adapter)
            except WireError as error:
                logger.warning("%s; until one is, prompts are taken in here", error)
            model.engine = DecodeEngine(engine, connector)
        if self.listen is None:
            return lambda: None
        host, port = self.listen
        try:
            return PrefillServer(engine, self.token, host=host, port=port).stop
        except OSError as error:
            # Python's own text says twice where it tried to listen.
            reason = os.strerror(error.errno) if error.errno else error
            message = f"can't listen at {host}:{port} for the other server: {reason}; change --prefill-listen"
            raise UsageError(message) from error


def pairing_of(listen: str | None, source: str | None, token_file: Path | None) -> Pairing | None:
    """Returns the pairing that is asked for, None without one; raises UsageError naming the option at fault."""
    if listen is None and source is None:
        if token_file is not None:
            message = "--pages-token-file is for --prefill-listen or --prefill-from, and neither is given"
            raise UsageError(message)
        return None
    if token_file is None:
        message = "two servers hand pages over only with a shared secret: give --pages-token-file FILE to both"
        raise UsageError(message)
    try:
        token = guarded_bytes(token_file, most=_MOST_TOKEN_BYTES).strip()
    except OSError as error:
        message = f"--pages-token-file {token_file} can't be read: {error.strerror or error}"
        raise UsageError(message) from error
    if len(token) < _LEAST_TOKEN_BYTES:
        message = f"--pages-token-file {token_file} holds {len(token)} bytes, expected at least {_LEAST_TOKEN_BYTES}"
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
