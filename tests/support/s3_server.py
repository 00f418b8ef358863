"""A real S3 server on this machine, moto's, that can be made to fail in the ways that S3 does."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

BUCKET = "bucket"
Answer = Any


class S3Server:
    """Serves one bucket; the methods that spoil it hold until `mend`. `requests` counts all that came."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._app = DomainDispatcherApplication(create_backend_app)
        # Moto checks a condition and writes in two steps; S3 does both at once.
        self._alone = threading.Lock()
        self._spoil: Callable[[dict[str, Any], Any], Answer | None] = lambda environ, start: None
        self.requests = 0
        self.seen: list[tuple[str, str]] = []
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def client(self) -> Any:
        """Returns a client of the server."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    # --- faults ------------------------------------------------------------------------------------------------

    def mend(self) -> None:
        """Ends every fault."""
        self._spoil = lambda environ, start: None

    def fail(
        self,
        status: str = "503 Slow",
        code: str = "SlowDown",
        *,
        times: int = 10**9,
        only: str = "",
        key: str = "",
    ) -> None:
        """Answers with an error, so many times; `only` requests of a method, such as PUT, and of keys with `key`."""
        left = [times]

        def spoil(environ: dict[str, Any], start: Any) -> Answer | None:
            if (only and environ["REQUEST_METHOD"] != only) or left[0] <= 0 or key not in environ["PATH_INFO"]:
                return None
            left[0] -= 1
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            return _error(start, status, code)

        self._spoil = spoil

    def vanish(self) -> None:
        """The bucket is gone."""
        self.fail("404 Not Found", "NoSuchBucket")

    def deny(self) -> None:
        """The rights are gone."""
        self.fail("403 Forbidden", "AccessDenied")

    def delay(self, seconds: float, key: str = "") -> None:
        """Answers come late, of keys that hold `key`."""

        def spoil(environ: dict[str, Any], start: Any) -> Answer | None:
            del start
            if key in environ["PATH_INFO"]:
                time.sleep(seconds)
            return None

        self._spoil = spoil

    def cut_uploads(self, times: int, key: str = "") -> None:
        """Closes the connection half-way through the body, so many times."""
        left = [times]

        def spoil(environ: dict[str, Any], start: Any) -> Answer | None:
            length = int(environ.get("CONTENT_LENGTH") or 0)
            if environ["REQUEST_METHOD"] != "PUT" or left[0] <= 0 or length < 2 or key not in environ["PATH_INFO"]:
                return None
            left[0] -= 1
            environ["wsgi.input"].read(length // 2)
            _hang_up(environ)
            return _error(start, "500 Cut", "Cut")

        self._spoil = spoil

    def lose_answers(self, times: int) -> None:
        """Does what a PUT asks for, and closes the connection without saying so."""
        left = [times]

        def spoil(environ: dict[str, Any], start: Any) -> Answer | None:
            if environ["REQUEST_METHOD"] != "PUT" or left[0] <= 0:
                return None
            left[0] -= 1
            with self._alone:
                list(self._app(environ, lambda *args: None))
            _hang_up(environ)
            return _error(start, "500 Lost", "Lost")

        self._spoil = spoil

    # --- inside ------------------------------------------------------------------------------------------------

    def _answer(self, environ: dict[str, Any], start: Any) -> Answer:
        self.requests += 1
        self.seen.append((environ["REQUEST_METHOD"], environ.get("PATH_INFO", "")))
        spoilt = self._spoil(environ, start)
        if spoilt is not None:
            return spoilt
        with self._alone:
            return list(self._app(environ, start))


def _error(start: Any, status: str, code: str) -> Answer:
    body = f"<Error><Code>{code}</Code><Message>a fault of the drill</Message></Error>".encode()
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def _hang_up(environ: dict[str, Any]) -> None:
    import socket

    with contextlib.suppress(OSError):
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Yields a server with an empty bucket, named in this process's environment."""
    server = S3Server()
    before = {name: os.environ.get(name) for name in server.environment}
    os.environ.update(server.environment)
    try:
        server.client().create_bucket(Bucket=BUCKET)
        yield server
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        server.close()
