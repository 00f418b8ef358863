"""A model trained by `quickstart`, talked with as people do: on the chat page in a browser, and in a terminal."""

import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import time

import pytest
from browser import CHROMIUM, Browser, until
from xla_options import xla_flags

KANAWA = str(pathlib.Path(sys.executable).with_name("kanawa"))
SECONDS = 300
pytestmark = pytest.mark.nightly


def environment():
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags(), "TERM": "xterm"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of `quickstart`, of which the first steps are enough to write something like Python."""
    run = tmp_path_factory.mktemp("quickstart") / "run"
    command = [KANAWA, "train", "quickstart", "--run", str(run), "--steps", "60"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    return run


def test_in_a_browser(trained, tmp_path):
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed here: apt install chromium")
    command = [KANAWA, "serve", str(trained), "--port", "0", "--json", "--name", "quickstart"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as server:
        url = json.loads(server.stdout.readline())["url"]
        browser = Browser(tmp_path / "browser")
        try:
            browser.open(url)
            until(lambda: browser.text("#model")[0].startswith("quickstart"), 30)
            browser.run("document.getElementById('max_tokens').value = 200")
            browser.say("def main(")
            grown = until(lambda: browser.text(".assistant")[0], 60)
            # It grows while it is written.
            until(lambda: len(browser.text(".assistant")[0]) > len(grown) > 0, 60)
            until(lambda: browser.run("document.getElementById('stop').disabled"), 120)
            answer, (rate,) = browser.text(".assistant")[0], browser.text("#rate")
            assert len(answer) > len(grown)
            assert re.search(r"\d+ tokens", rate)
            assert "tokens/s" in rate
            assert browser.text(".error") == []
            assert browser.complaints == []
        finally:
            browser.close()
            server.send_signal(signal.SIGTERM)
        assert server.wait(SECONDS) == 0


class Terminal:
    """A terminal with a program in it, and what it shows, piece by piece."""

    def __init__(self, *command):
        self._ours, theirs = os.openpty()
        # The program's own session, so that what is typed as Ctrl-C reaches it as a signal.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command], env=environment(), stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        self.pieces: list[str] = []

    def type(self, text):
        os.write(self._ours, text.encode())

    def read_until(self, pattern, start=0):
        """Returns how many pieces came until the text of those from `start` on matches."""
        end = time.monotonic() + SECONDS
        while not re.search(pattern, "".join(self.pieces[start:])):
            assert time.monotonic() < end, "".join(self.pieces)
            if select.select([self._ours], [], [], 1.0)[0]:
                self.pieces.append(self._read())
        return len(self.pieces)

    def _read(self):
        try:
            return os.read(self._ours, 4096).decode(errors="replace")
        except OSError:
            pytest.fail(f"the program has ended with {self.process.wait(SECONDS)}: {''.join(self.pieces)}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(SECONDS)
        os.close(self._ours)


def test_in_a_terminal(trained):
    # Long answers: one that has ended by itself can't be stopped any more.
    with Terminal(KANAWA, "chat", str(trained), "--max-tokens", "1500", "--seed", "1") as terminal:
        begun = terminal.read_until(r"Talking with .*Ctrl-C stops an answer\.\r\n> $")
        terminal.type("def main(\r")
        ended = terminal.read_until(r"\[\d+ tokens, [\d.]+ a second\]\r\n> $", begun)
        assert ended - begun > 10, "the answer came at once, and not as it was written"
        terminal.type("class Node:\r")
        answering = terminal.read_until(r"class Node:\r\n[^>]", ended)
        terminal.type("\x03")
        stopped = terminal.read_until(r"tokens, [\d.]+ a second, stopped\]\r\n> $", answering)
        terminal.type("/reset\r")
        asked = terminal.read_until(r"/reset\r\n> $", stopped)
        terminal.type("/exit\r")
        terminal.read_until(r"/exit\r\n", asked)
        assert terminal.process.wait(SECONDS) == 0
