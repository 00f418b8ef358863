"""A chat endpoint on this machine that an environment's programs call, and that a rollout answers turn by turn."""

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: What an environment names its rollout by, in every request.
_SESSION = "X-Session-ID"
_MOST_BYTES = 1 << 28


class Session:
    """A rollout under way: `events` are ("asked", request), ("done", episode) or ("failed", error), in order."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def answer(self, text: str | None) -> None:
        """Answers the request that waits; None refuses it, as there is no room for another turn."""
        self._answers.put(text)

    def ask(self, request: Any) -> str | None:
        """Returns the answer to a request, once there is one."""
        self.events.put(("asked", request))
        return self._answers.get()


class Endpoint:
    """Serves `/v1/chat/completions` on a free port of this machine; requests name their session in a header."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        sessions = self._sessions

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(min(int(self.headers.get("Content-Length", 0)), _MOST_BYTES)))
                session = sessions.get(self.headers.get(_SESSION, ""))
                if session is None or not self.path.endswith("/chat/completions"):
                    self._send(404, "application/json", _refusal("unknown path or session", "not_found"))
                    return
                text = session.ask(body)
                if text is None:
                    refusal = _refusal("the row has no room for another turn", "context_length_exceeded")
                    self._send(400, "application/json", refusal)
                elif body.get("stream"):
                    self._send(200, "text/event-stream", _stream(text))
                else:
                    self._send(200, "application/json", json.dumps(_completion(text, "message")).encode())

            def _send(self, status: int, kind: str, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
                """Writes nothing: each turn is a request."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads, self._server.block_on_close = True, False
        threading.Thread(target=self._server.serve_forever, name="kanawa-turns", daemon=True).start()

    @property
    def address(self) -> str:
        """The base of the endpoint's addresses, with the version."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def register(self, name: str, session: Session) -> None:
        """Takes requests that name a session."""
        self._sessions[name] = session

    def forget(self, session: Session) -> None:
        """Takes no more requests of a session."""
        for name in [name for name, one in self._sessions.items() if one is session]:
            del self._sessions[name]

    def close(self) -> None:
        """Refuses what waits, and ends the server."""
        for session in list(self._sessions.values()):
            session.answer(None)
        self._server.shutdown()
        self._server.server_close()


def _refusal(message: str, code: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "code": code}}).encode()


def _completion(text: str, field: str) -> dict[str, Any]:
    """Returns a completion, or one chunk of a stream with all of it."""
    choice = {"index": 0, field: {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    kind = "chat.completion" if field == "message" else "chat.completion.chunk"
    return {"id": "kanawa", "object": kind, "created": 0, "model": "policy", "choices": [choice], "usage": usage}


def _stream(text: str) -> bytes:
    return f"data: {json.dumps(_completion(text, 'delta'))}\n\ndata: [DONE]\n\n".encode()
