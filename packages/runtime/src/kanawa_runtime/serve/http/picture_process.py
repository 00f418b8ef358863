"""Pictures of requests in a process of its own: decoding strangers' bytes takes memory, and Python's interpreter.

Run as a module it is such a process.
"""

import base64
import os
import pickle
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

import numpy as np

from kanawa_runtime.child_process import ChildProcesses, answer_messages
from kanawa_runtime.data.errors import ItemError
from kanawa_runtime.data.images.decode import PictureError
from kanawa_runtime.data.images.model_pixels import pixels_of

_MOST_MEMORY_BYTES = 4 * 2**30
_FETCH_SECONDS = 10.0
#: The start of a process included.
_SECONDS = 60.0
#: Engine and event loop go before it where cores are short.
_NICENESS = 5


class Wanted(NamedTuple):
    """What a picture has to be: its shape for the model, and the server's limits."""

    shape: tuple[int, ...]
    max_bytes: int
    max_pixels: int
    #: Hosts that pictures may be fetched from.
    hosts: tuple[str, ...] = ()


class PictureProcesses:
    """Decodes in as many processes as threads ask at once."""

    def __init__(self) -> None:
        self._processes = ChildProcesses(__name__)

    def pixels(self, url: str, wanted: Wanted) -> np.ndarray:
        """Returns the pixels of a data URL, or of an address of an allowed host, as the model reads them.

        Raises PictureError for what is no picture, or more than a limit, which it names.
        """
        check_url(url, wanted)
        message = pickle.dumps((url, wanted), protocol=5)
        most = int(np.prod(wanted.shape)) + 2**16
        try:
            answer = pickle.loads(self._processes.ask(message, seconds=_SECONDS, most_bytes=most))
        except (OSError, EOFError) as error:
            limits = f"{_SECONDS:g} s or {_MOST_MEMORY_BYTES // 2**20:,} MiB of memory"
            text = f"it took more than {limits} to decode; send a smaller one"
            raise PictureError(text) from error
        if isinstance(answer, str):
            raise PictureError(answer)
        pixels: np.ndarray = answer
        return pixels

    def close(self) -> None:
        """Ends the processes that have nothing to do."""
        self._processes.close()


def check_url(url: str, wanted: Wanted) -> None:
    """Raises PictureError for an address that pictures aren't read from, before anything is."""
    scheme = url.partition(":")[0].lower()[:20]
    if scheme == "data":
        # Four characters are three bytes.
        if len(url) * 3 // 4 > wanted.max_bytes + 128:
            raise _too_long(wanted)
        return
    if scheme not in ("http", "https"):
        message = f"{url[:40]!r} is no data URL: expected data:image/png;base64,… with the picture's bytes"
        raise PictureError(message)
    try:
        host = urllib.parse.urlsplit(url).hostname
    except ValueError:
        host = None
    if host not in wanted.hosts:
        named = f"; it fetches from {', '.join(wanted.hosts)}" if wanted.hosts else ""
        message = (
            f"this server fetches no pictures from {str(host)[:80]!r} (server.picture_hosts){named}; send its bytes "
            "as a data URL, data:image/png;base64,…"
        )
        raise PictureError(message)


def pixels_of_url(url: str, wanted: Wanted) -> np.ndarray:
    """Returns the pixels; raises PictureError."""
    data = _fetched(url, wanted) if url[:5].lower() != "data:" else _bytes_of(url)
    if len(data) > wanted.max_bytes:
        raise _too_long(wanted)
    return pixels_of(data, wanted.shape, wanted.max_pixels, limit="max_picture_pixels")


def _too_long(wanted: Wanted) -> PictureError:
    return PictureError(f"it has more than {wanted.max_bytes:,} bytes (max_picture_bytes)")


def _bytes_of(url: str) -> bytes:
    head, comma, body = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        message = f"{url[:40]!r} is no data URL in base64: expected data:image/png;base64,…"
        raise PictureError(message)
    try:
        return base64.b64decode(body, validate=True)
    except ValueError as error:
        message = f"its data URL isn't base64: {error}"
        raise PictureError(message) from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An allowed host must not say which other one is asked."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follows none."""
        return


def _fetched(url: str, wanted: Wanted) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)
    try:
        with opener.open(url, timeout=_FETCH_SECONDS) as answer:
            content: bytes = answer.read(wanted.max_bytes + 1)
            return content
    except (OSError, ValueError) as error:  # URLError and HTTPError are OSErrors
        message = f"{url[:80]!r} can't be fetched: {str(error)[:200]}"
        raise PictureError(message) from error


def _answer(message: bytes) -> bytes:
    url, wanted = pickle.loads(message)
    made: Any
    try:
        made = pixels_of_url(url, wanted)
    except (ItemError, MemoryError) as error:
        made = str(error)[:1000] or "it takes more memory than there is"
    return pickle.dumps(made, protocol=5)


def main() -> None:
    """Decodes until the input ends."""
    os.nice(_NICENESS)
    answer_messages(_answer, _MOST_MEMORY_BYTES)


if __name__ == "__main__":
    # Under its own name: what it reads was pickled there.
    from kanawa_runtime.serve.http import picture_process

    picture_process.main()
