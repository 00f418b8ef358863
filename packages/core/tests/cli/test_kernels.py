"""`kanawa kernels`: choices without a platform's libraries, fallbacks judged, tables that can't be read."""

import json
import os

import pytest
from kanawa.cli.main import main
from kanawa.composition import environment
from kanawa.plugins import PluginHost, manager
from kernel_experiment import ENTRY_POINTS, WORK

#: Alone, core has no mesh rule for the eight devices of its tests.
ONE = ("--on", "cpu-1")


@pytest.fixture(autouse=True)
def experiment(fake_distribution, monkeypatch, tmp_path):
    monkeypatch.setenv("KANAWA_TUNING", str(tmp_path / "tuning.json"))
    fake_distribution("fake-tiny", ENTRY_POINTS, {"fake_tiny": WORK})


def told(capsys, *arguments, code=0):
    assert main(["kernels", "tiny", *arguments]) == code
    return capsys.readouterr()


def test_a_kernel_is_named_where_its_library_is_missing(capsys):
    (choice,) = json.loads(told(capsys, "--on", "loom-1", "--json").out)
    assert (choice["operation"], choice["kernel"]) == ("attention", "attention.gpu.locked")


def test_fallbacks_are_listed_and_then_judged(capsys):
    assert told(capsys, "--on", "loom-1", "--require-fused").err == ""
    said = told(capsys, "--on", "loom-1", "--require-fused", "--set", "length=32", code=1)
    assert "not attention.gpu.locked: q_length 32 is over 16" in said.out
    assert "1 of 1 calls get no fused kernel; change the problem" in said.err
    assert "gets attention.any.reference" in said.err
    # A CPU has no fused kernels to ask for.
    assert told(capsys, "--require-fused", "--set", "length=32").err == ""


def test_options_of_a_package_that_is_not_installed_say_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(manager, "_current", PluginHost(discover=list))
    for option in (["--bench"], ["--schedule", "attention.gpu.locked"]):
        assert (
            'is an option of kanawa-kernel-tools; run: pip install "kanawa[kernel-tools]"'
            in told(capsys, *option, code=2).err
        )


def test_a_table_that_is_not_there_or_not_one_is_an_error(capsys, tmp_path):
    said = told(capsys, "--set", "execution.tuning=gone.json", code=2).err
    assert "execution.tuning: there is no file 'gone.json'; expected auto, none, or a table" in said
    (tmp_path / "tuning.json").write_text("{}")
    assert "isn't a tuning table" in told(capsys, code=2).err


@pytest.mark.skipif(os.geteuid() == 0, reason="root enters every folder")
def test_a_home_that_cannot_be_entered_has_no_table(capsys, tmp_path):
    tmp_path.chmod(0)
    try:
        assert json.loads(told(capsys, "--json").out)[0]["kernel"] == "attention.cpu.slow"
    finally:
        tmp_path.chmod(0o700)


def test_a_table_that_may_not_be_read_is_none(capsys, monkeypatch):
    def denied(path, kind):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(environment, "measured_uses", denied)
    assert json.loads(told(capsys, "--json").out)[0]["kernel"] == "attention.cpu.slow"
