"""The page: complete, self-contained, and never in the way of a partial log."""

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from kanawa.config import to_json
from kanawa.errors import UsageError
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.report import loss_picture, write_report
from kanawa_runtime.report.run_data import distinct_names, load_run

_VOID = {"meta", "link", "br"}
STARTED = {"total_steps": 40, "plugins": {"kanawa": "0.1.0"}, "devices": "8 x cpu"}
KERNEL = {
    "operation": "attention",
    "problem": "q8 <k8>",
    "kernel": "attention.cpu.blockwise",
    "refused": [{"kernel": "attention.gpu.cudnn", "reason": "no NVIDIA GPU"}],
}
SAVED = {"path": "x", "bytes": 2_500_000, "blocking_seconds": 0.1, "seconds": 0.4}


class _Balance(HTMLParser):
    """Fails on a tag that isn't closed, or closed in the wrong place."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _run(path: Path, *, rate: float = 1e-3, attempts: int = 2) -> Path:
    (path / "checkpoints").mkdir(parents=True)
    cfg = Learner.Config(schedule=Constant.Config(peak=rate))
    (path / "config.json").write_text(json.dumps(to_json(cfg, origins=True)))
    records, clock = [], 0.0
    for attempt, (start, stop) in enumerate([(0, 30), (20, 40)][:attempts], 1):
        records += [
            {"event": kind, "attempt": attempt, "clock": clock} | fields
            for kind, fields in (("run_started", STARTED), ("kernel_selected", KERNEL))
        ]
        clock += 2.0
        common = {"attempt": attempt, "clock": clock}
        records.append(common | {"event": "prepared", "step": start, "seconds": 2.0})
        for step in range(start + 1, stop + 1):
            clock += 0.5
            loss = "nan" if step == 7 else 4.0 - 0.05 * step
            common = {"attempt": attempt, "clock": clock}
            metrics = {"gradient_norm": 1.0 + step}
            found = {"loss": loss, "tokens": 100.0, "seconds": 0.5, "metrics": metrics}
            records.append(common | {"event": "step", "step": step} | found)
        records.append(common | {"event": "eval", "step": stop, "loss": 2.5, "nats_per_byte": 0.9})
        records.append(common | {"event": "checkpoint_committed", "step": stop} | SAVED)
        records.append(common | {"event": "run_ended", "outcome": "done", "step": stop})
    (path / "events.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def _page(runs: list[Path], out: Path) -> str:
    write_report(runs, out)
    text = out.read_text()
    parser = _Balance()
    parser.feed(re.sub(r"<script>.*?</script>|<style>.*?</style>", "", text, flags=re.DOTALL))
    assert parser.open == []
    return text


def test_a_page_shows_the_run_and_needs_no_network(tmp_path: Path) -> None:
    text = _page([_run(tmp_path / "first")], tmp_path / "report.html")
    for expected in (
        "40 of 40",
        "Loss a token",
        "Tokens a second",
        "Gradient norm",
        "attention.cpu.blockwise",
        "attention.gpu.cudnn: no NVIDIA GPU",
        "q8 &lt;k8&gt;",
        "8 x cpu",
        "2.5",
        "schedule.peak",
        "1, first 7",
    ):
        assert expected in text
    assert not re.search(r"https?://|src=|@import|url\(", text)


def test_several_runs_are_compared(tmp_path: Path) -> None:
    runs = [_run(tmp_path / "a" / "run"), _run(tmp_path / "b" / "run", rate=0.5)]
    text = _page(runs, tmp_path / "out" / "both.html")
    assert "<title>a/run · b/run</title>" in text
    assert "Config differences" in text
    assert re.search(r"schedule\.peak</code></td><td><code>0\.001</code></td><td><code>0\.5<", text)


@pytest.mark.parametrize("kept", [0, 1, 2, 4, 5, 40])
def test_partial_logs_give_partial_pages(tmp_path: Path, kept: int) -> None:
    run = _run(tmp_path / "run")
    lines = (run / "events.jsonl").read_text().splitlines()
    (run / "events.jsonl").write_text("\n".join(lines[:kept]) + '\n{"event": "st')
    (run / "config.json").write_text("{")
    assert "can&#x27;t be read" in _page([run], tmp_path / "report.html")


def test_odd_records_do_no_harm(tmp_path: Path) -> None:
    run = _run(tmp_path / "run")
    with (run / "events.jsonl").open("a") as file:
        for event in (
            "step",
            "eval",
            "checkpoint_committed",
            "kernel_selected",
            "sample",
            "checkpoint_damaged",
            "new",
        ):
            file.write(json.dumps({"event": event}) + "\n")
            file.write(json.dumps({"event": event, "step": 3, "loss": None, "seconds": "soon", "metrics": 3}) + "\n")
    _page([run, tmp_path / "nowhere"], tmp_path / "report.html")


def test_time_adds_up_and_repeated_steps_are_told(tmp_path: Path) -> None:
    run = load_run(_run(tmp_path / "run"))
    spent = run.time_spent()
    assert spent["training"] == pytest.approx(40 * 0.5)
    assert spent["steps repeated after a restart"] == pytest.approx(10 * 0.5)
    assert spent["starting and compiling"] == pytest.approx(4.0)
    assert run.throughput()[0] == (2.0, 200.0)
    assert {step for step, _ in run.step_seconds()} == set(map(float, range(2, 41)))


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    runs = [load_run(tmp_path / part) for part in ("x/seed/run", "y/seed/run")]
    assert distinct_names(runs) == ["x/seed/run", "y/seed/run"]


def test_the_picture_is_an_svg_of_its_own(tmp_path: Path) -> None:
    loss_picture(_run(tmp_path / "run"), tmp_path / "loss.svg")
    root = ET.parse(tmp_path / "loss.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"training", "evaluation", "completed updates"} <= set(texts)
    with pytest.raises(UsageError, match="has no step to plot yet"):
        loss_picture(tmp_path / "nowhere", tmp_path / "other.svg")
