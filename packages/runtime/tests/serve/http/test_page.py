"""The chat page in a real browser, Chromium without a screen, spoken to over a pipe."""

import json
import os
import shutil
import subprocess
import time

import pytest

from .running_server import running_server, wait_for
from .scripted_engine import ScriptedEngine

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


class Browser:
    """One page, by the DevTools protocol: messages end with a zero byte, on the browser's descriptors 3 and 4."""

    def __init__(self, folder):
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

    def call(self, method, **params):
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

    def _next(self):
        while b"\0" not in self._held:
            data = os.read(self._read, 65536)
            assert data, "the browser has ended"
            self._held += data
        text, _, self._held = self._held.partition(b"\0")
        return json.loads(text)

    def run(self, script):
        """Returns what a script of the page's world gives."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, url):
        self.run("window.isOld = true")
        self.call("Page.navigate", url=url)
        wait_for(lambda: self.run("document.readyState === 'complete' && !window.isOld"), 30)

    def say(self, text):
        """Types a message as a person does, and sends it with Enter."""
        before = len(self.text("main > div"))
        self.run("document.getElementById('input').focus()")
        self.call("Input.insertText", text=text)
        assert self.run("document.getElementById('input').value") == text
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13)
        wait_for(lambda: len(self.text("main > div")) >= before + 2)

    def text(self, selector):
        return self.run(f"[...document.querySelectorAll({selector!r})].map((e) => e.textContent)")

    def close(self):
        self._process.terminate()
        self._process.wait(20)
        os.close(self._read)
        os.close(self._write)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed here: apt install chromium")
    made = Browser(tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def paged():
    with running_server(ScriptedEngine(step_seconds=0.01, max_length=4096)) as running:
        yield running


def idle(browser):
    return wait_for(lambda: browser.run("document.getElementById('stop').disabled"), 30)


def test_a_conversation(browser, paged):
    browser.open(paged.url)
    wait_for(lambda: browser.text("#model") == ["scripted (goes on with texts; not made for chats)"])
    browser.run("document.getElementById('max_tokens').value = 9")
    browser.say("ab<b>é")
    idle(browser)
    # As text: nothing that anybody writes becomes part of the page.
    assert browser.text("main > div") == ["ab<b>é", "ab<b>é\na"]
    assert browser.run("document.querySelectorAll('main b').length") == 0
    (rate,) = browser.text("#rate")
    assert "tokens/s" in rate
    assert "9 tokens" in rate
    # The second turn holds the first: the scripted model begins with it.
    browser.run("document.getElementById('max_tokens').value = 25")
    browser.say("more")
    idle(browser)
    assert browser.text("main > div")[3] == "ab<b>é\nab<b>é\na\nmore\nab"[:25]
    assert browser.complaints == []


def test_an_answer_grows_and_is_stopped(browser, paged):
    browser.open(paged.url)
    browser.run("document.getElementById('max_tokens').value = 2000")
    browser.say("xyz")
    wait_for(lambda: len(browser.text(".assistant")[0]) > 5)
    grown = len(browser.text(".assistant")[0])
    wait_for(lambda: len(browser.text(".assistant")[0]) > grown)
    browser.run("document.getElementById('stop').click()")
    idle(browser)
    wait_for(lambda: paged.engine.places_used == 0)
    assert "stopped" in browser.text("#rate")[0]
    length = len(browser.text(".assistant")[0])
    time.sleep(0.1)
    assert len(browser.text(".assistant")[0]) == length


def test_errors_are_shown(browser, paged):
    browser.open(paged.url)
    browser.run("document.getElementById('temperature').value = 500")
    browser.say("a")
    idle(browser)
    assert browser.text(".error") == ["temperature: 500 is out of range, expected a number from 0 to 100"]


def test_the_page_loads_nothing_from_elsewhere(server):
    answer = server.http.get("/")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in answer.text.replace("http-equiv", "")
