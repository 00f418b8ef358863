"""Talking in the terminal, before a scripted engine: turns, commands, and what a program reads."""

import argparse
import io
import json

import pytest
from kanawa_runtime.commands.chat import talk
from kanawa_runtime.serve.conversation import Conversation
from kanawa_runtime.serve.engine.request import SamplingParams

from ..serve.http.running_server import model_of
from ..serve.http.scripted_engine import ScriptedEngine


@pytest.fixture(scope="module")
def model():
    engine = ScriptedEngine(max_length=64)
    engine.start()
    yield model_of(engine)
    engine.stop()


def told(model, monkeypatch, capsys, text, *, as_json=False, system=None, max_tokens=6):
    """Returns what stdout and stderr hold after a conversation."""
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    args = argparse.Namespace(run_directory="runs/x", json=as_json, picture=[])
    talk(Conversation(model, system, SamplingParams(max_tokens=max_tokens)), args, plain=True)
    return capsys.readouterr()


def test_turns_hold_those_before(model, monkeypatch, capsys):
    written = told(model, monkeypatch, capsys, "ab\ncd\n")
    # The scripted model begins with its prompt: the second time with the first turn.
    assert written.out == "ab\nab\n\n" + "ab\nab\n" + "\n"


def test_a_reset_forgets_them(model, monkeypatch, capsys):
    written = told(model, monkeypatch, capsys, "ab\n/reset\ncd\n/exit\nnever\n")
    assert written.out == "ab\nab\n\ncd\ncd\n\n"


def test_a_system_message_stays(model, monkeypatch, capsys):
    assert told(model, monkeypatch, capsys, "/reset\nab\n", system="S").out == "S\nab\nS\n"


def test_what_a_program_reads(model, monkeypatch, capsys):
    (line,) = told(model, monkeypatch, capsys, "ab\n", as_json=True).out.splitlines()
    record = json.loads(line)
    seconds = record.pop("seconds")
    assert seconds >= 0
    assert record == {"message": "ab", "answer": "ab\nab\n", "tokens": 6, "stopped": False}


def test_commands_that_arent_there_and_conversations_that_dont_fit(model, monkeypatch, capsys):
    written = told(model, monkeypatch, capsys, "/rest\n" + "x" * 90 + "\nab\n")
    assert "no command '/rest'; /picture FILE shows one with the next message, /reset begins anew" in written.err
    assert "prompt and answer together may have 64 tokens" in written.err
    # What didn't fit is no part of the conversation.
    assert written.out == "ab\nab\n\n"
