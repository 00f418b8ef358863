"""Chromium without a screen, spoken to over a pipe: pages are opened, typed into and read as a person does."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


class Browser:
    """One page, by the DevTools protocol: messages end with a zero byte, on the browser's descriptors 3 and 4."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None, "no Chromium is installed here: apt install chromium"
        command = [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank",
        ]  # fmt: skip
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # The browser looks for its ends at 3 and 4, wherever ours lie.
        shell = f'exec "$@" 3<&{to_read} 4>&{to_write} {to_read}<&- {to_write}>&-'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *command],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._held, self._count, self._session = b"", 0, None
        (page,) = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        self.complaints = []
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Returns the result of a command; what the page complains of meanwhile is kept."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(answer["params"])
        assert "result" in answer, answer
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._held:
            data = os.read(self._read, 65536)
            assert data, "the browser has ended"
            self._held += data
        text, _, self._held = self._held.partition(b"\0")
        return json.loads(text)

    def run(self, script: str) -> Any:
        """Returns what a script of the page's world gives."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, url: str) -> None:
        """Opens a page, and returns once it is there."""
        self.run("window.isOld = true")
        self.call("Page.navigate", url=url)
        until(lambda: self.run("document.readyState === 'complete' && !window.isOld"), 30)

    def say(self, text: str) -> None:
        """Types a message as a person does, and sends it with Enter."""
        before = len(self.text("main > div"))
        self.run("document.getElementById('input').focus()")
        self.call("Input.insertText", text=text)
        assert self.run("document.getElementById('input').value") == text
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13)
        until(lambda: len(self.text("main > div")) >= before + 2)

    def text(self, selector: str) -> list[str]:
        """Returns the texts of all elements that a selector names."""
        return self.run(f"[...document.querySelectorAll({selector!r})].map((e) => e.textContent)")

    def close(self) -> None:
        """Ends the browser."""
        self._process.terminate()
        self._process.wait(20)
        os.close(self._read)
        os.close(self._write)


def until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Returns what `condition` returns once it is true; fails after some seconds."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)
    return value
