"""The profiler, the status page and the preemption notice, each in a run or beside a real server."""

import gzip
import http.server
import json
import signal
import threading
import urllib.error
import urllib.request

import pytest
import tiny_lm
from kanawa.composition.experiment import compose
from kanawa.errors import UsageError
from kanawa.testing.service import ServiceConformance
from kanawa_runtime.services.preemption_notice import PreemptionNotice
from kanawa_runtime.services.profiler import Profiler, profile_modifier
from kanawa_runtime.services.status_page import StatusPage
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import Screen


class TestStatusPage(ServiceConformance):
    def config(self):
        return StatusPage.Config()


class TestPreemptionNotice(ServiceConformance):
    def config(self):
        return PreemptionNotice.Config(file="/no/such/notice", every_seconds=0.05)


class TestProfiler(ServiceConformance):
    def config(self):
        return Profiler.Config(first=1, last=2)


def test_a_profile_is_there_for_tensorboard_and_for_perfetto(tmp_path):
    cfg = tiny_lm.tiny()
    cfg.set(services=(Profiler.Config(first=3, last=5),))
    Loop(compose(cfg), tmp_path / "run", steps=6, screen=Screen()).execute()
    (xplane,) = (tmp_path / "run" / "profile").glob("plugins/profile/*/*.xplane.pb")
    assert xplane.stat().st_size > 1000
    (perfetto,) = (tmp_path / "run" / "profile").glob("plugins/profile/*/perfetto_trace.json.gz")
    with gzip.open(perfetto) as file:
        assert json.load(file)["traceEvents"]


def test_a_window_that_is_none_is_refused():
    assert profile_modifier("steps=10:20") == {"first": 10, "last": 20}
    for window in ("10:20", "steps=10", "steps=a:b", "seconds=1:2"):
        with pytest.raises(UsageError, match="expected steps=FIRST:LAST, such as steps=10:20"):
            profile_modifier(window)
    with pytest.raises(UsageError, match="a profile of steps 9 to 3 has none"):
        Profiler.Config(first=9, last=3).build()


def get(url, host=None):
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def test_the_page_says_what_the_run_does(tmp_path):
    conformance = TestStatusPage()
    run, service = conformance.run_of(tmp_path), StatusPage.Config().build()
    service.start(run)
    try:
        url = (tmp_path / "status-page.url").read_text().strip()
        service.section(run, "evaluate", 7)
        service.event(run, {"event": "step", "step": 7, "loss": 2.5})
        service.event(run, {"event": "eval", "step": 7, "loss": "<script>"})
        status = json.loads(get(f"{url}status.json"))
        assert (status["step"], status["loss"], status["section"]) == (7, 2.5, "evaluate")
        shown = get(url)
        assert "evaluate, for" in shown
        assert "&lt;script&gt;" in shown
        assert "test_the_page_says_what_the_run_does" in get(f"{url}stacks")
        assert (tmp_path / "status-page.url").stat().st_mode & 0o077 == 0
        port = url.rsplit("/", 2)[0]
        wrong = (f"{port}/", f"{port}/status.json", f"{port}/x/stacks")
        asked = [(url + "nothing", None, 404), (url, "evil.example:80", 403), *((place, None, 403) for place in wrong)]
        for place, host, code in asked:
            with pytest.raises(urllib.error.HTTPError) as raised:
                get(place, host)
            assert raised.value.code == code
            raised.value.close()
    finally:
        service.stop(run)


@pytest.fixture
def metadata_server():
    """Answers as a cloud's metadata server; `says` is its next answer."""
    said = {"answer": "FALSE", "headers": []}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            said["headers"].append(self.headers.get("Metadata-Flavor"))
            if said["answer"] is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(said["answer"].encode())

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/preempted", said
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_notice_is_a_sigterm(metadata_server, tmp_path):
    url, said = metadata_server
    service = PreemptionNotice.Config(url=url, header="Metadata-Flavor: Google", every_seconds=0.05).build()
    stopped = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda number, frame: stopped.set())
    try:
        service.start(None)
        for answer in ("FALSE", None):
            said["answer"] = answer
            assert not stopped.wait(0.3)
        said["answer"] = "TRUE"
        assert stopped.wait(60)
    finally:
        signal.signal(signal.SIGTERM, before)
        service.stop(None)
    assert set(said["headers"]) == {"Google"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "give one of them"),
        ({"url": "http://h", "file": "/f"}, "give one of them"),
        ({"url": "file:///etc/passwd"}, "expected one that begins with http:// or https://"),
    ],
)
def test_a_notice_that_comes_from_nowhere_is_refused(fields, said):
    with pytest.raises(UsageError, match=said):
        PreemptionNotice.Config(**fields).build()
