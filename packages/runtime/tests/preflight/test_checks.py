"""What doctor tries: promises of a file system, kept and broken; the network; limits; hosts that differ."""

import fcntl
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time

import pytest
from kanawa.cli.main import main
from kanawa.errors import UsageError
from kanawa_runtime.preflight import file_system, hosts, process

PROMISES = ["disk", "files", "rename", "exclusive create", "lock", "append", "fsync", "clock"]


def test_this_file_system_keeps_its_promises_and_nothing_stays_behind(tmp_path, monkeypatch):
    # A disk that others write to may take its time; that it is told of is another test's.
    monkeypatch.setattr(file_system, "_MOST_FSYNC_SECONDS", 300)
    told = file_system.findings(tmp_path / "new")
    assert [finding.subject for finding in told] == PROMISES
    assert all(finding.level == "ok" for finding in told if finding.subject not in ("disk", "files"))
    assert list((tmp_path / "new").iterdir()) == []


def test_a_folder_that_cant_be_made_is_one_error(tmp_path):
    (tmp_path / "file").write_text("")
    (told,) = file_system.findings(tmp_path / "file" / "run")
    assert told.level == "error" and "can't be written to" in told.message and "--run DIR" in told.fix


def unlocked(descriptor, operation):
    pass


def unsupported(descriptor, operation):
    raise OSError(95, "Operation not supported")


@pytest.mark.parametrize(("flock", "text"), [(unlocked, "two got the same"), (unsupported, "not supported")])
def test_locks_that_hold_nobody_are_errors(tmp_path, monkeypatch, flock, text):
    monkeypatch.setattr(fcntl, "flock", flock)
    told = file_system.check_lock(tmp_path)
    assert told.level == "error" and text in told.message
    assert "silently destroy" in told.meaning and "Lustre: -o flock" in told.fix


def test_lost_appends_slow_syncs_and_wrong_clocks_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(file_system, "_APPEND", file_system._APPEND.replace("os.O_APPEND", "os.O_TRUNC"))
    told = file_system.check_append(tmp_path)
    assert told.level == "warning" and "of 400 lines appended at once" in told.message
    monkeypatch.setattr(os, "fsync", lambda descriptor: time.sleep(0.02))
    monkeypatch.setattr(file_system, "_MOST_FSYNC_SECONDS", 0.01)
    assert file_system.check_fsync(tmp_path).level == "warning"
    monkeypatch.undo()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    told = file_system.check_clock(tmp_path)
    assert told.level == "warning" and re.search(r"\+3600\.\d s from the file system's", told.message)


def test_a_file_system_that_refuses_is_an_error_of_that_promise(tmp_path, monkeypatch):
    def refuse(self, target):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(pathlib.Path, "replace", refuse)
    told = {finding.subject: finding for finding in file_system.findings(tmp_path)}
    assert told["rename"].level == "error" and "Input/output error" in told["rename"].message
    assert told["lock"].level == "ok"


def test_limits_and_variables():
    assert process.check_open_files(1024).level == "warning" and process.check_open_files(65536).level == "ok"
    (told,) = process.check_variables({"JAX_DISABLE_JIT": "1", "JAX_ENABLE_X64": "0"})
    assert (told.level, told.message, told.fix) == ("warning", "JAX_DISABLE_JIT=1", "unset JAX_DISABLE_JIT")
    assert process.check_variables({})[0].level == "ok"
    assert process.check_flags_parse({}) == []


def test_a_flag_that_the_compiler_lacks_is_told_before_a_run_ends_by_it():
    (told,) = process.check_flags_parse({**os.environ, "XLA_FLAGS": "--xla_no_such_flag=1"})
    assert told.level == "error" and "xla_no_such_flag" in told.message
    assert "as soon as it starts JAX" in told.meaning


def test_a_name_that_others_cant_reach_and_a_coordinator(monkeypatch):
    assert process.check_listens().level == "ok"
    assert process.check_name("no-such-host.invalid").level == "warning"
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: [(2, 1, 6, "", ("127.0.1.1", 0))])
    assert "this host alone can reach that" in process.check_name("here").message
    monkeypatch.undo()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert process.check_coordinator(f"127.0.0.1:{port}").message.endswith("answers")
    assert process.check_coordinator(f"127.0.0.1:{port}").message.endswith("is this host's, and free")
    monkeypatch.setattr(process, "_SECONDS", 0.2)
    assert process.check_coordinator("192.0.2.1:1").level == "warning"
    for wrong in ("host", "host:", ":80", "host:99999", "host:x"):
        with pytest.raises(UsageError, match=r"expected HOST:PORT, such as 10.0.0.1:8476"):
            process.check_coordinator(wrong)


def record(name, **changes):
    alike = {"skew_seconds": 0.0, "plugins": "abc", "versions": "jax 1", "flags": "none", "python": "3.12"}
    return {"host": name, **alike, **changes}


def test_hosts_that_differ_are_named_with_what_it_does():
    told = hosts.compare({"a": record("a"), "b": record("b")}, 2)
    assert all(finding.level == "ok" for finding in told)
    others = {"b": record("b", versions="jax 2", skew_seconds=-40.0), "c": record("c", flags="XLA_FLAGS=--x")}
    told = {finding.subject: finding for finding in hosts.compare({"a": record("a"), **others}, 4)}
    assert told["hosts"].message == "3 of 4 hosts left a record: a, b, c"
    assert told["versions of hosts"].message == "jax 1 on a, c; jax 2 on b"
    assert told["flags of hosts"].level == "error" and told["plugins of hosts"].level == "ok"
    assert told["clocks of hosts"].message == "clocks are at most 40.0 s apart; b is -40.0 s off"


def test_two_processes_that_run_it_at_once_find_each_other(tmp_path):
    command = [sys.executable, "-m", "kanawa.cli", "doctor", "--json", "--run", str(tmp_path), "--hosts", "2"]
    command += ["--wait", "300"]
    environments = [os.environ, {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}]
    running = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for env in environments]
    told = [{f["subject"]: f for f in json.loads(one.communicate(timeout=500)[0])} for one in running]
    assert all(one["hosts"]["message"] == "2 of 2 are here" for one in told)
    assert all(one["flags of hosts"]["level"] == "error" for one in told)
    assert [one.returncode for one in running] == [1, 1]
    assert told[0]["flags of hosts"]["meaning"] and told[0]["flags of hosts"]["fix"]


@pytest.mark.parametrize("words", [["--hosts", "2"], ["--hosts", "0", "--run", "."], ["--coordinator", "here"]])
def test_what_makes_no_sense_is_a_usage_error(words, capsys):
    assert main(["doctor", *words]) == 2
    assert "expected" in capsys.readouterr().err
