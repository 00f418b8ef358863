"""The chat page in a real browser."""

import time

import pytest
from browser import CHROMIUM, Browser

from .running_server import running_server, wait_for
from .scripted_engine import ScriptedEngine


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
    wait_for(lambda: browser.text("#model") == ["scripted (continues text; not a chat model)"])
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
    assert browser.text(".error") == ["temperature: Input should be less than or equal to 100, got 500"]


def test_the_page_loads_nothing_from_elsewhere(server):
    answer = server.http.get("/")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in answer.text.replace("http-equiv", "")
