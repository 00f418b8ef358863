"""`kanawa kernels EXPERIMENT --bench`: kernels are measured, the fastest is used from then on."""

import json
import re

import pytest
from kanawa.cli.main import main
from kernel_experiment import ENTRY_POINTS, WORK

#: There is no mesh rule for the eight devices of the tests.
ONE = ("--on", "cpu-1")


@pytest.fixture(autouse=True)
def experiment(fake_distribution, monkeypatch, tmp_path):
    monkeypatch.setenv("KANAWA_TUNING", str(tmp_path / "tuning.json"))
    fake_distribution("fake-tiny", ENTRY_POINTS, {"fake_tiny": WORK})


def told(capsys, *arguments, code=0):
    assert main(["kernels", "tiny", *arguments]) == code
    return capsys.readouterr()


def test_what_bench_measures_is_used_from_then_on(capsys, tmp_path):
    first = json.loads(told(capsys, "--json").out)[0]["kernel"]
    assert first == "attention.cpu.slow"
    said = told(capsys, "--bench", *ONE).out
    assert "attention.cpu.slow block=5, temporary" in said
    assert "attention.any.reference, temporary 0 MiB  <- used from now on" in said
    assert f"wrote 1 problem to {tmp_path / 'tuning.json'}" in said
    assert json.loads(told(capsys, "--json").out)[0]["kernel"] == "attention.any.reference"
    unused = told(capsys, "--json", "--set", "execution.tuning=none").out
    assert json.loads(unused)[0]["kernel"] == "attention.cpu.slow"


def test_bench_writes_and_a_config_names_a_table(capsys, tmp_path):
    table = tmp_path / "table.json"
    measured = json.loads(told(capsys, "--bench", *ONE, "--json", "--table", str(table)).out)
    assert measured["table"] == str(table)
    (one,) = measured["measured"]
    assert {(m["kernel"], tuple(m["tuning"])) for m in one["measured"]} >= {("attention.cpu.slow", ("block",))}
    used = told(capsys, "--json", "--set", f"execution.tuning={table}").out
    assert json.loads(used)[0]["kernel"] == "attention.any.reference"
    assert json.loads(told(capsys, "--json").out)[0]["kernel"] == "attention.cpu.slow"


def test_what_is_not_here_cannot_be_measured(capsys):
    said = told(capsys, "--bench", "--on", "loom-1", code=2).err
    assert "--bench measures on this machine's devices, which are cpu (cpu), and --on asks for loom-1" in said


def test_a_problem_larger_than_the_machine_is_not_tried(capsys, tmp_path):
    said = told(capsys, "--bench", *ONE, "--set", f"rows={2**26}", code=1).out
    assert re.search(r"not measured: its operands take \d+,\d+ MiB and with gradients some 6 times that, of ", said)
    assert "nothing was measured" in said
    assert not (tmp_path / "tuning.json").exists()
