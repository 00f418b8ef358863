"""What a person reads: verdicts, tables at every width, comparisons; no number that isn't there."""

import dataclasses
import shutil
import sys

import pytest
from kanawa_parallel.plan.report.report import ModuleRow, Report, Suggestion, Traffic
from kanawa_parallel.plan.show.render import comparison, format_table, render

REPORT = Report(
    experiment="llama",
    target="v5p-512",
    program="train_step",
    devices=256,
    chips=256,
    compiled=True,
    note="",
    fits=True,
    memory={"parameters": 3 * 2**30, "temporaries": 5 * 2**29, "total": 11 * 2**29},
    memory_limit_bytes=95 * 2**30,
    arguments_error=0.0004,
    temporaries_error=-0.031,
    flops_per_device=1.5e15,
    flops_per_step=256 * 1.5e15,
    model_flops_per_step=256 * 1.2e15,
    bytes_per_device=1e12,
    tokens_per_step=4_000_000,
    estimated_cycles=3.5e9,
    estimated_seconds=2.2,
    unestimated_seconds=0.3,
    calibration={"interval": [0.9, 1.2], "said": "calibrated on 3 published steps of this kind"},
    step_seconds_by={"compute": 2.0, "memory": 0.3, "exposed_communication": 0.2, "pipeline_bubble": 0.0},
    published_seconds=2.0,
    mesh={"data": 4, "fsdp": 64},
    kernels=[
        {
            "operation": "attention",
            "problem": "q[1]",
            "kernel": "attention.tpu.splash",
            "refused": [{"kernel": "attention.tpu.other", "reason": "it is too old"}],
        }
    ],
    communication=[Traffic("fsdp", "ICI", "all-gather", 64, 3e9, 0.5, 0.2)],
    modules=[ModuleRow("model.stack", 2**30, 2**31, 0, 2**20, 1e12, 1e9, 1.5)],
    compile_seconds=41.2,
    peak_flops=918e12,
    mfu_formula="model FLOPs over time",
    versions={},
)
SMALL = dataclasses.replace(
    REPORT,
    experiment="tiny",
    target="cpu",
    devices=1,
    chips=1,
    mesh={},
    memory={"parameters": 4096, "total": 70_000},
    memory_limit_bytes=2**34,
    step_seconds_by={"compute": 3e-6, "memory": 4e-5},
    estimated_seconds=4.3e-5,
    unestimated_seconds=0.0,
    published_seconds=None,
    communication=[],
    modules=[ModuleRow("model.layer", 512, 512, 0, 64, 1200.0, 300.0, 2e-6)],
)
TOO_LARGE = dataclasses.replace(
    REPORT,
    fits=False,
    memory={"total": 120 * 2**30},
    step_seconds_by={},
    suggestions=(
        Suggestion("--modify remat:policy=full", True, 80 * 2**30, 3.25),
        Suggestion("--modify accumulate:microbatches=2", False, 99 * 2**30, None),
    ),
)


def test_an_mfu_that_cant_be_is_remarked():
    above = dataclasses.replace(REPORT, peak_flops=459e12)
    assert "MFU 104.6% (above 100 %: the device's figures are too low), compute binds" in render(above)


def test_a_whole_report():
    text = render(REPORT)
    for said in (
        "llama train_step on v5p-512: 256 devices (256 chips), mesh data 4 x fsdp 64; compiled in 41.2 s",
        "fits: 5.50 GiB of 95 GiB a device, 89.5 GiB free",
        "2.50 s (2.25 s to 3 s) a step, 1.60 M tokens/s, MFU 52.3%, compute binds; published 2.0 s, error +25.0%",
        "  calibrated on 3 published steps of this kind",
        "  at the figures' own best 2.20 s, 300 ms of it estimated by no compiler",
        "arguments by path +0.04%, temporaries alive at the peak -3.1%",
        "1.50 P FLOPs a device, 1.250 of the model's own, the compiler's cycles 3.50 G",
        "kernel attention: attention.tpu.splash",
        "    for q[1]",
        "    not attention.tpu.other: it is too old",
    ):
        assert said in text
    for row in (["compute", "2 s", "80.0%"], ["fsdp", "ICI", "all-gather", "64", "3 GB", "500 ms", "200 ms"]):
        assert any([cell for cell in line.split("  ") if cell.strip()] for line in text.splitlines())
        line = next(line for line in text.splitlines() if line.startswith(row[0]) and row[1] in line)
        assert all(cell in line for cell in row)


def test_a_small_plan_is_no_column_of_zeros():
    text = render(SMALL)
    assert "tiny train_step on cpu: 1 device (1 chip), mesh one device" in text
    assert "68.4 KiB of 16 GiB a device" in text
    assert "43.0 µs (38.7 µs to 51.6 µs) a step" in text
    line = next(line for line in text.splitlines() if line.startswith("model.layer"))
    assert [cell.strip() for cell in line.split("  ") if cell.strip()] == [
        *("model.layer", "512 B", "512 B", "64 B", "1.20 k", "300 B", "2 µs")
    ]
    assert "communication" not in text.replace("exposed_communication", "")


def test_what_does_not_fit_says_so_and_names_no_time():
    text = render(TOO_LARGE)
    assert "DOES NOT FIT: 120 GiB of 95 GiB a device, 25 GiB too much" in text
    assert "no step time: a program that doesn't fit never runs" in text
    assert "tokens/s" not in text and "MFU" not in text and "step time (" not in text
    assert "  --modify remat:policy=full: fits, 80 GiB a device, 3.25 s a step" in text
    assert "  --modify accumulate:microbatches=2: does not fit, 99 GiB a device\n" in text + "\n"


def test_a_plan_that_no_compiler_made_says_so():
    text = render(dataclasses.replace(REPORT, compiled=False, note="from figures"))
    assert "ESTIMATED in 41.2 s, not compiled" in text.splitlines()[0]
    assert "  from figures" in text


def test_a_price_stands_beside_the_time():
    priced = dataclasses.replace(REPORT, cost_per_million_tokens=0.01234, currency="EUR")
    assert "; 0.0123 EUR per million tokens" in render(priced)


def test_a_comparison_ranks_by_time_and_by_cost_and_puts_last_what_does_not_fit():
    cheap = dataclasses.replace(REPORT, target="slow-8", step_seconds_by={"memory": 9.0}, cost_per_million_tokens=0.1)
    quick = dataclasses.replace(REPORT, target="fast-8", cost_per_million_tokens=0.2, currency="USD")
    lines = comparison([TOO_LARGE, cheap, quick]).splitlines()
    order = [line.split()[0] for line in lines if line.startswith(("slow", "fast", "v5p"))]
    assert order == ["fast-8", "slow-8", "v5p-512"]
    last = next(line for line in lines if line.startswith("v5p-512"))
    assert last.split()[1:] == ["no", "120", "GiB", "-", "-", "-", "-", "-"]
    assert lines[-1] == "by cost: slow-8 0.1, fast-8 0.2"


def test_without_prices_nothing_is_said_of_cost():
    assert "by cost" not in comparison([REPORT, SMALL])


@pytest.mark.parametrize("columns", [40, 60, 80, 140])
def test_tables_keep_to_the_terminal(monkeypatch, columns):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: __import__("os").terminal_size((columns, 24)))
    rows = [("model.stack.layer.attention.query", "12.3 GiB", "24.6 GiB", "all-gather"), ("b", "1 B", "2 B", "c")]
    text = format_table("by module", ("module", "parameters", "optimizer", "kind"), rows)
    assert max(len(line) for line in text.splitlines()) <= columns
    assert "".join(text.split()).count("12.3GiB") == 1 or columns < 80


def test_a_file_has_room_for_every_column():
    rows = [("m" * 60, "1", "2")]
    assert "m" * 60 in format_table("wide", ("a", "b", "c"), rows)


def test_brackets_in_a_cell_stay():
    assert "layers[0].[bold]" in format_table("t", ("name",), [("layers[0].[bold]",)])
