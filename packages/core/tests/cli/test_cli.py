"""The command line: exit codes, streams, JSON keys, and verbs from plugins."""

import argparse
import json
import os
import subprocess
import sys

import pytest
from kanawa._version import __version__
from kanawa.cli.arguments import experiment_arguments
from kanawa.cli.main import main
from kanawa.cli.verbs import core_verbs
from kanawa.plugins import PluginHost, manager
from kanawa.plugins.discovery import Entry, Provider

VERBS = """
import sys
from kanawa.errors import KanawaError, UsageError
from kanawa.plugins import Command, hookimpl

class Preempted(KanawaError):
    exit_code = 42

def configure(parser):
    parser.add_argument("how")

def run(args):
    if args.how == "preempted":
        error = Preempted("told to stop")
        error.add_note("after step 7")
        error.add_note("For simplicity, Grain has removed its internal frames from the traceback")
        raise error
    if args.how == "interrupted":
        raise KeyboardInterrupt
    if args.how == "exit":
        raise SystemExit(0)
    if args.how == "bug":
        raise ZeroDivisionError("oops")
    return int(args.how)

@hookimpl
def kanawa_commands():
    return [Command("{verb}", "pretend", configure, run)]
"""


FROM_FAKE = "  this comes from the plugin fake-verbs 1.0; KANAWA_SKIP_PLUGINS=fake-verbs leaves it out"


@pytest.fixture
def plugin_verb(fake_distribution):
    def add(dist, verb):
        module = dist.replace("-", "_")
        source = VERBS.replace("{verb}", verb)
        entry_points = {"kanawa.plugins": [f"{dist} = {module}"]}
        return fake_distribution(dist, entry_points, {module: source})

    return add


def shell(*arguments, path=(), **kwargs):
    paths = [*map(str, path), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "kanawa.cli", *arguments]
    return subprocess.Popen(command, env=environment, text=True, **kwargs)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"kanawa {__version__}\n"


def test_no_verb_prints_help_and_is_a_usage_error(capsys):
    assert main([]) == 2
    assert "list components that configs can name" in capsys.readouterr().out


@pytest.mark.parametrize("verb", sorted(core_verbs()))
def test_help_of_every_verb_has_an_example(capsys, verb):
    assert main([verb, "--help"]) == 0
    assert f"example:\n  kanawa {verb}" in capsys.readouterr().out


def test_unknown_verb(capsys):
    assert main(["lst"]) == 2
    assert "no verb 'lst' is installed; did you mean 'list'?" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["train", "report", "serve", "convert"])
def test_a_verb_of_a_package_that_is_missing_says_what_to_install(monkeypatch, capsys, verb):
    monkeypatch.setattr(manager, "_current", PluginHost(discover=list))
    assert main([verb, "quickstart"]) == 2
    told = capsys.readouterr().err
    assert f"no verb {verb!r} is installed" in told
    assert 'kanawa-layers, kanawa-parallel, kanawa-runtime (pip install "kanawa[train]")' in told


def test_a_verb_of_a_plugin_that_cannot_be_used_says_why(monkeypatch, capsys):
    provider = Provider(
        name="kanawa-runtime",
        version="0.1.0",
        entries=(Entry(kind="plugins", name="runtime", value="no_such_module"),),
        unmet=("needs jax>=99, found 0.10",),
    )
    monkeypatch.setattr(manager, "_current", PluginHost(discover=lambda: [provider]))
    assert main(["train"]) == 2
    told = capsys.readouterr().err
    assert "plugin kanawa-runtime:runtime 0.1.0 is incompatible: needs jax>=99, found 0.10" in told


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        ("0", 0, ""),
        ("7", 7, ""),
        ("preempted", 42, f"kanawa: error: told to stop\n  after step 7\n{FROM_FAKE}\n"),
        ("interrupted", 130, "kanawa: interrupted\n"),
    ],
)
def test_exit_code_and_message_of_a_plugin_verb(capsys, plugin_verb, how, code, message):
    plugin_verb("fake-verbs", "pretend")
    assert main(["pretend", how]) == code
    assert capsys.readouterr() == ("", message)


def test_a_verb_that_ends_the_program_is_not_taken_for_success(capsys, plugin_verb):
    plugin_verb("fake-verbs", "pretend")
    assert main(["pretend", "exit"]) == 1
    assert capsys.readouterr().err == f"kanawa: error: SystemExit: 0\n{FROM_FAKE}\n"


def test_an_error_of_a_plugin_is_one_line_and_names_it(capsys, plugin_verb):
    plugin_verb("fake-verbs", "pretend")
    assert main(["pretend", "bug"]) == 1
    assert capsys.readouterr().err == f"kanawa: error: ZeroDivisionError: oops\n{FROM_FAKE}\n"
    assert main(["pretend", "bug", "--traceback"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_error_of_our_own_is_a_bug_with_its_traceback(capsys, monkeypatch):
    monkeypatch.setattr("kanawa.cli.verbs.listing.kind_named", int)
    assert main(["list", "layers"]) == 1
    error = capsys.readouterr().err
    assert "ValueError" in error
    assert "Traceback" in error
    assert "this is a bug" in error


def test_an_error_in_a_file_of_the_user_is_not_called_ours(capsys, monkeypatch):
    monkeypatch.setattr("kanawa.cli.verbs.listing.kind_named", lambda word: 1 / 0)
    assert main(["list", "layers"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("kanawa: error: ZeroDivisionError: division by zero\n  raised in ")
    assert "test_cli.py, line " in error and "this is a bug" not in error


BAD_VERBS = """
from kanawa.plugins import Command, CommandOptions, hookimpl

def fails(parser):
    raise RuntimeError("no licence found")

def unreadable(parser):
    parser.add_argument("--share", help="100% of it")

def nothing(parser):
    pass

@hookimpl
def kanawa_commands():
    return [
        Command("fails", "raises", fails, print),
        Command("unreadable", "shows 100% of it", unreadable, lambda args: 0),
        Command("chatty", "100% talk", nothing, lambda args: "done"),
    ]

@hookimpl
def kanawa_command_options():
    return [CommandOptions("list", fails, lambda args: None)]
"""


def test_a_verb_whose_arguments_fail_is_left_out_and_no_other(capsys, caplog, fake_distribution):
    fake_distribution("bad-verbs", {"kanawa.plugins": ["bad = bad_verbs"]}, {"bad_verbs": BAD_VERBS})
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "100% talk" in shown
    assert "list components" in shown
    assert "\n    fails" not in shown
    warned = [record.getMessage() for record in caplog.records]
    leaves = "KANAWA_SKIP_PLUGINS=bad-verbs leaves it out"
    assert f"verb fails is left out: plugin bad-verbs:bad 1.0: RuntimeError: no licence found; {leaves}" in warned
    assert main(["list", "kernels"]) == 0, "options that fail take nothing from the verb"
    assert main(["fails"]) == 1
    assert "RuntimeError: no licence found; KANAWA_SKIP_PLUGINS=bad-verbs" in capsys.readouterr().err
    assert main(["unreadable", "--help"]) == 1
    assert "the help of verb 'unreadable' can't be shown" in capsys.readouterr().err
    assert main(["chatty"]) == 1
    assert "verb chatty returned 'done', expected an exit code" in capsys.readouterr().err


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_traceback_of_a_deliberate_error_only_when_asked(capsys, plugin_verb, monkeypatch, by):
    plugin_verb("fake-verbs", "pretend")
    if by == "variable":
        monkeypatch.setenv("KANAWA_TRACEBACK", "1")
    arguments = ["pretend", "preempted", *(["--traceback"] if by == "flag" else [])]
    assert main(arguments) == 42
    assert "Traceback" in capsys.readouterr().err


def test_a_verb_of_ours_keeps_its_name_and_the_other_has_a_way(capsys, caplog, plugin_verb):
    plugin_verb("fake-verbs", "list")
    plugin_verb("fake-more", "pretend")
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "pretend" in out
    assert "list components that configs can name" in out
    assert "fake-verbs:list" in out
    (line,) = [record.getMessage() for record in caplog.records]
    assert "verb 'list' is offered by kanawa and fake-verbs:fake-verbs; kanawa list is that of kanawa" in line
    assert main(["fake-verbs:list", "7"]) == 7


def test_verb_claimed_twice_is_an_error_only_when_used(capsys, plugin_verb):
    plugin_verb("fake-a", "pretend")
    plugin_verb("fake-b", "pretend")
    assert main(["plugins"]) == 0
    assert main(["pretend", "0"]) == 1
    assert "verb 'pretend' is offered by fake-a:fake-a and fake-b:fake-b" in capsys.readouterr().err
    assert main(["fake-b:pretend", "5"]) == 5


def test_plugins_json(capsys, fake_distribution):
    fake_distribution("fake-bad", {"kanawa.plugins": ["bad = fake_bad"]}, {"fake_bad": "1/0"})
    assert main(["plugins", "--json"]) == 0
    (bad,) = [p for p in json.loads(capsys.readouterr().out) if p["name"] == "bad"]
    assert {key: bad[key] for key in ("name", "distribution", "version", "state", "reason")} == {
        "name": "bad",
        "distribution": "fake-bad",
        "version": "1.0",
        "state": "broken",
        "reason": "ZeroDivisionError: division by zero",
    }
    assert main(["plugins"]) == 0
    assert "bad " in capsys.readouterr().out


def test_list_one_kind_as_json_and_as_a_table(capsys, fake_distribution):
    fake_distribution("fake-a", {"kanawa.widgets": ["w = fake_a:W"]}, version="2.5")
    assert main(["list", "widgets", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    expected = {"name": "w", "kind": "widgets", "distribution": "fake-a", "version": "2.5"}
    assert found.items() >= {**expected, "state": "available"}.items()
    assert main(["list", "widgets"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert row.split() == ["w", "fake-a", "2.5"]
    assert header.index("FROM") == row.index("fake-a")


def test_list_of_an_unknown_kind(capsys):
    assert main(["list", "layres"]) == 2
    assert "there is no kind 'layres'; did you mean 'layers'" in capsys.readouterr().err


def test_experiment_arguments():
    parser = argparse.ArgumentParser()
    experiment_arguments(parser)
    text = "tiny --on cpu-8 --modify moe:num_experts=8,k=2 --set a=1 --modify x --set b.c=2"
    args = parser.parse_args(text.split())
    assert (args.experiment, args.on) == ("tiny", "cpu-8")
    assert (args.modify, args.set) == (["moe:num_experts=8,k=2", "x"], ["a=1", "b.c=2"])


def test_reader_that_stops_reading_is_no_error(fake_distribution):
    # More than a pipe holds, so that writing goes on after the reader has gone.
    lines = [f"w{number} = fake_a:W" for number in range(5000)]
    site = fake_distribution("fake-a", {"kanawa.widgets": lines})
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with shell("list", "widgets", path=[site], **pipes) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0


def test_module_can_be_run(fake_distribution):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with shell("show", "nowhere", **pipes) as process:
        out, error = process.communicate()
    assert (process.returncode, out) == (2, "")
    assert error.startswith("kanawa: error: no experiment, model or folder is called 'nowhere'")
    assert "Traceback" not in error
