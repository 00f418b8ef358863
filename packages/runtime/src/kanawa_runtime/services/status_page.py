"""What a run is doing, to look at while it runs: a small page and JSON, on this machine only."""

import faulthandler
import hmac
import html
import json
import logging
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kanawa.config import Count
from kanawa.contracts import Run, Service

from kanawa_runtime.goodput.account import account
from kanawa_runtime.goodput.time_log import read_time_records

logger = logging.getLogger(__name__)

#: Of these the last record is shown whole.
_SHOWN = ("step", "eval", "checkpoint_committed", "checkpoint_failed", "straggler", "replicas_differ", "loss_spike")
_LOCAL_NAMES = ("127.0.0.1", "localhost")


class StatusPage(Service):
    """Serves a page, `status.json` and `stacks` on 127.0.0.1 at `port`; 0 takes a free one.

    The address has a token, without which nothing is shown: other users of the machine reach the port too. It is logged
    and written to `RUN/status-page.url`, for the run's owner to read. `stacks` are those of the first process.
    """

    class Config(Service.Config):
        port: Count = 0

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._lock = threading.Lock()
        self._token = secrets.token_urlsafe(24)
        self._records: dict[str, Mapping[str, Any]] = {}
        self._section: tuple[str, int, float] = ("setup", 0, time.monotonic())
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def section(self, run: Run, name: str, step: int) -> None:
        """Notes it."""
        self._section = (name, step, time.monotonic())

    def start(self, run: Run) -> None:
        """Opens the port; raises OSError where it is taken."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.answer(self, run)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                del format, args

        self._server = ThreadingHTTPServer(("127.0.0.1", self.config.port), Handler)
        self._server.daemon_threads = True
        url = f"http://127.0.0.1:{self._server.server_port}/{self._token}/"
        file = Path(run.directory, "status-page.url")
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
            written.write(url + "\n")
        logger.warning("the run's status page is %s", url)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="status-page", daemon=True)
        self._thread.start()

    def event(self, run: Run, event: Mapping[str, Any]) -> None:
        """Keeps the last record of each kind that is shown."""
        if event.get("event") in _SHOWN:
            with self._lock:
                self._records[event["event"]] = event

    def stop(self, run: Run) -> None:
        """Closes the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if self._thread is not None:
            self._thread.join()

    def status(self, run: Run) -> dict[str, Any]:
        """Returns what `/status.json` shows."""
        name, step, since = self._section
        with self._lock:
            records = dict(self._records)
        drawn = None
        try:
            drawn = account(read_time_records(Path(run.directory))).as_json()
        except OSError:
            logger.debug("no events to read", exc_info=True)
        return {
            "run": run.directory,
            "attempt": run.attempt,
            "step": records.get("step", {}).get("step", step),
            "loss": records.get("step", {}).get("loss"),
            "section": name,
            "section_seconds": time.monotonic() - since,
            "records": records,
            "account": drawn,
        }

    def answer(self, request: BaseHTTPRequestHandler, run: Run) -> None:
        """Answers a request for one of the three; anything else is not found."""
        # A page of somebody else's that a browser shows here could ask under a name of its own that leads here.
        host = (request.headers.get("Host") or "").rpartition(":")[0] or request.headers.get("Host")
        _, _, rest = request.path.partition("/")
        token, _, path = rest.partition("/")
        if host not in _LOCAL_NAMES:
            _send(request, 403, "text/plain", "ask for 127.0.0.1 or localhost\n")
        elif not hmac.compare_digest(token.encode(), self._token.encode()):
            _send(request, 403, "text/plain", "ask at the address in the run's status-page.url\n")
        elif path == "status.json":
            _send(request, 200, "application/json", json.dumps(self.status(run)))
        elif path == "stacks":
            _send(request, 200, "text/plain", stacks())
        elif not path:
            _send(request, 200, "text/html", page(self.status(run)))
        else:
            _send(request, 404, "text/plain", "there are a page, status.json and stacks\n")


def stacks() -> str:
    """Returns the Python stacks of all threads of this process."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def page(status: Mapping[str, Any]) -> str:
    """Returns the status as a page that loads itself anew every five seconds."""
    rows = {
        "step": status["step"],
        "loss": status["loss"],
        "doing": f"{status['section']}, for {status['section_seconds']:.1f} s",
        "attempt": status["attempt"],
    }
    if status["account"] is not None:
        rows["goodput"] = f"{100 * status['account']['goodput']:.1f} %"
    rows |= {kind: json.dumps(record) for kind, record in status["records"].items() if kind != "step"}
    cells = "".join(f"<tr><th>{html.escape(str(k))}<td>{html.escape(str(v))}" for k, v in rows.items())
    title = html.escape(Path(status["run"]).name)
    return (
        f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="5"><title>{title}</title>'
        "<style>body{font:15px system-ui;margin:2em}th{text-align:left;padding-right:1em;vertical-align:top}</style>"
        f'<h1>{title}</h1><table>{cells}</table><p><a href="status.json">JSON</a> <a href="stacks">stacks</a>'
    )


def _send(request: BaseHTTPRequestHandler, code: int, kind: str, text: str) -> None:
    data = text.encode()
    request.send_response(code)
    request.send_header("Content-Type", f"{kind}; charset=utf-8")
    request.send_header("Content-Length", str(len(data)))
    request.send_header("Cache-Control", "no-store")
    request.end_headers()
    request.wfile.write(data)
