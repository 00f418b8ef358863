"""The page: complete, self-contained, and never in the way of a partial log."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from kanawa.config import origin, to_json
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.report import run_figures, write_report
from kanawa_runtime.report.curves import loss_series
from kanawa_runtime.report.run_data import distinct_names, load_run

_VOID = {"meta", "link", "br"}
STARTED = {"total_steps": 40, "plugins": {"kanawa": "0.1.0"}, "devices": "8 x cpu"}
KERNEL = {
    "operation": "attention",
    "problem": "q8 <k8>",
    "kernel": "attention.cpu.blockwise",
    "refused": [{"kernel": "attention.gpu.cudnn", "reason": "no NVIDIA GPU"}],
}
PROGRAM = {
    "parameters": 1_000_000,
    "trained_parameters": 250_000,
    "parameters_by_module": {"embedding": 600_000, "stack.layer.attention": 400_000},
    "model_flops_per_step": 6e9,
    "memory_per_device_bytes": {"state and batch": 3 * 2**20, "temporaries": 2**20},
    "device_kind": "H100 <80GB>",
    "chips": 2,
    "peak_flops_per_chip": 6e10,
    "peak_flops_dtype": "bfloat16",
    "peak_flops_source": "a data sheet",
    "memory_limit_bytes": 80 * 2**30,
}
LAUNCH = {
    "command": "kanawa train x --set 'a=<b>'",
    "working_directory": "/home/someone",
    "git": {"commit": "0123456789abcdef" * 2, "branch": "topic", "dirty": True},
    "processor": "A Processor 2.5GHz",
    "cores": 64,
    "config_changes": [{"path": "execution.mesh", "old": "None", "new": "8"}],
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
            for kind, fields in (
                ("run_started", STARTED | LAUNCH),
                ("kernel_selected", KERNEL),
                ("program", PROGRAM),
            )
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
        for at, tokens, loss in ((start + 5, 100, 3.0), (stop - 5, 100, 2.6), (stop, 900, 2.5)):
            records.append(common | {"event": "eval", "step": at, "loss": loss, "tokens": tokens, "nats_per_byte": 0.9})
        records[-1]["trigram_nats_per_byte"] = 1.75
        records.append(common | {"event": "sample", "step": stop, "prompt": "def <f>", "text": "(x & y)"})
        records.append(common | {"event": "memory", "device_peak_bytes": 5 * 2**30, "process_peak_bytes": 2**31})
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
        "stack.layer.attention</td>",
        "of them trained",
        "a device&#x27;s memory</td><td>80.00 GiB",
        "most in use on a device</td><td>5.00 GiB",
        "MFU</td><td>10.0%",
        "60 G in bfloat16 (a data sheet)",
        "<b>def &lt;f&gt;</b>(x &amp; y)",
        "all, trigram table",
        "1.7500",
        "0123456789ab on topic, with changes",
        "kanawa train x --set &#x27;a=&lt;b&gt;&#x27;",
        "A Processor 2.5GHz",
        "execution.mesh</code></td>",
    ):
        assert expected in text
    assert not re.search(r"https?://|src=|@import|url\(", text)


def test_several_runs_are_compared(tmp_path: Path) -> None:
    runs = [_run(tmp_path / "a" / "run"), _run(tmp_path / "b" / "run", rate=0.5)]
    text = _page(runs, tmp_path / "out" / "both.html")
    assert "<title>a/run · b/run</title>" in text
    assert "Config differences" in text
    cells = r"schedule\.peak</code></td><td[^>]*><code>0\.001</code></td><td[^>]*><code>0\.5<"
    assert re.search(cells, text)


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
            "checkpoint_dropped",
            "new",
        ):
            file.write(json.dumps({"event": event}) + "\n")
            file.write(json.dumps({"event": event, "step": 3, "loss": None, "seconds": "soon", "metrics": 3}) + "\n")
    _page([run, tmp_path / "nowhere"], tmp_path / "report.html")


def test_steps_and_throughput_of_several_attempts(tmp_path: Path) -> None:
    run = load_run(_run(tmp_path / "run"))
    assert run.throughput()[0] == (2.0, 200.0)
    assert {step for step, _ in run.step_seconds()} == set(map(float, range(2, 41)))


def test_the_reward_of_a_run_that_learns_from_one_is_shown_first(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    steps = [{"event": "step", "step": n, "loss": 0.1, "reward": n / 10, "metrics": {}} for n in range(1, 41)]
    (run / "events.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    page = _page([run], tmp_path / "report.html")
    assert "Mean reward of the rollouts" in page and "mean reward of the last 20 updates" in page
    assert run_figures([run])[0]["reward"] == pytest.approx(3.05)


def test_the_section_about_data_shows_counts_what_was_left_out_and_waits(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    read = {"documents": 9_000, "unreadable_rows": 2, "reasons": ["web.jsonl:3: not <JSON>"]}
    events: list[dict[str, object]] = [
        {"event": "data", "web": read, "code": {"documents": 1_234, "tokens": 5_000_000}},
        {"event": "attempt_opened", "time": 1.0, "process_started": 0.0, "processes": 1},
        # The wait for the first batch is no wait of a step.
        {"event": "time_spent", "time": 5.0, "sections": {"data": 3.0, "step": 1.0}, "steps": 2, "step": 2},
        {"event": "time_spent", "time": 9.0, "sections": {"data": 0.04, "step": 3.96}, "steps": 8, "step": 10},
    ]
    (run / "events.jsonl").write_text("".join(json.dumps({"attempt": 1, **event}) + "\n" for event in events))
    page = _page([run], tmp_path / "report.html")
    section = re.search(r"<section><h2>Data</h2>.*?</section>", page, flags=re.DOTALL)
    assert section
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", section[0])]
    assert rows == [
        ["source", "documents", "unreadable rows", "tokens"],
        ["web", "9,000", "2", ""],
        ["code", "1,234", "", "5,000,000"],
    ]
    assert "<li>web.jsonl:3: not &lt;JSON&gt;</li>" in section[0]
    assert "Waiting for data took 1.00% of the time of steps, 5 ms a step." in section[0]
    figures = run_figures([run])[0]
    assert figures["data_wait_share"] == pytest.approx(0.01)
    assert figures["data_wait_seconds_per_step"] == pytest.approx(0.005)


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    runs = [load_run(tmp_path / part) for part in ("x/seed/run", "y/seed/run")]
    assert distinct_names(runs) == ["x/seed/run", "y/seed/run"]


def test_a_final_evaluation_is_not_joined_to_those_over_a_part(tmp_path: Path) -> None:
    run = load_run(_run(tmp_path / "run", attempts=1))
    assert run.evaluations() == ([(5.0, 3.0), (25.0, 2.6)], [(30.0, 2.5)])
    by_name = {series.name: series for series in loss_series([run], ["run"])}
    assert by_name["evaluation (part)"].joined
    assert not by_name["evaluation (all)"].joined
    assert "trigram table" in {series.name for series in loss_series([run], ["run"], "nats_per_byte")}


def test_evaluations_that_are_all_alike_are_one_curve(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", attempts=1)
    text = (run / "events.jsonl").read_text().replace('"tokens": 900', '"tokens": 100')
    (run / "events.jsonl").write_text(text)
    partial, whole = load_run(run).evaluations()
    assert (len(partial), whole) == (3, [])


def test_what_is_not_known_is_said_and_nothing_is_guessed(tmp_path: Path) -> None:
    run = _run(tmp_path / "run")
    known = '"peak_flops_per_chip": '
    text = (run / "events.jsonl").read_text().replace(f"{known}60000000000.0", f"{known}null")
    (run / "events.jsonl").write_text(text)
    page = _page([run], tmp_path / "report.html")
    assert "not known for H100 &lt;80GB&gt;" in page
    assert "MFU</td><td>not known" in page
    (figures,) = run_figures([run])
    assert figures["mfu"] is None
    assert (figures["parameters"], figures["eval_loss"], figures["trigram_nats_per_byte"]) == (1e6, 2.5, 1.75)
    assert figures["commit"].startswith("0123")


def test_figures_are_json(tmp_path: Path) -> None:
    run = _run(tmp_path / "run")
    lines = (run / "events.jsonl").read_text().splitlines()
    (run / "events.jsonl").write_text("\n".join(line for line in lines if '"step": 40' not in line or '"eval"' in line))
    text = json.dumps(run_figures([run, tmp_path / "nowhere"]), allow_nan=False)
    assert json.loads(text)[0]["mfu"] == pytest.approx(0.1)


def test_what_was_set_on_top_of_the_experiment_is_listed(tmp_path: Path) -> None:
    run = _run(tmp_path / "run")
    with origin("experiment", "mine"):
        cfg = Learner.Config(schedule=Constant.Config(peak=0.1))
    with origin("command line", "--set"):
        cfg.set_path("schedule.peak", 0.2)
    (run / "config.json").write_text(json.dumps(to_json(cfg, origins=True)))
    page = _page([run], tmp_path / "report.html")
    section = page[page.index("Set on top of the experiment") :]
    cells = r"schedule\.peak</code></td><td[^>]*><code>0\.2</code></td><td[^>]*><code>command line --set"
    assert re.search(cells, section)


def test_a_plot_is_drawn_for_wide_pages_and_for_narrow_ones(tmp_path: Path) -> None:
    page = _page([_run(tmp_path / "run")], tmp_path / "report.html")
    assert page.count('<div class="broad"><svg') == page.count('<div class="narrow"><svg') > 3
    assert ".narrow{display:none}" in page
