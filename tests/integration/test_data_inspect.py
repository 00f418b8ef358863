"""`kanawa data inspect` of a shipped experiment: files, and what can't be shown."""

import json

import pytest
from kanawa.cli.main import main


def inspected(capsys, *words):
    code = main(["data", "inspect", *words])
    return code, capsys.readouterr()


def test_the_verb_shows_files_and_writes_json(tmp_path, capsys):
    for number in range(30):
        same = "the same text twice\n" if number in (3, 4) else f"text number {number}\n" * (number + 1)
        (tmp_path / f"{number:02}.txt").write_text(same + "\x1b[2J")
    where = ("quickstart",)
    data = ("--data", str(tmp_path / "*.txt"))
    code, shown = inspected(capsys, *where, *data, "--rows", "2", "--sample", "8")
    assert code == 0
    assert "row 0: " in shown.out and "row 1: " in shown.out and "-- segment 1, " in shown.out
    assert "packing efficiency" in shown.out and "text number" in shown.out
    assert "\x1b" not in shown.out and "\\x1b[2J" in shown.out, "escape sequences of a file are shown, not obeyed"
    code, written = inspected(capsys, *where, *data, "--rows", "1", "--json")
    body = json.loads(written.out)
    assert code == 0 and body["exact_duplicates"] in (0, 1) and body["rows"][0]["segments"][0]["parts"][-1]["learned"]
    assert 0.5 < body["packing_efficiency"] <= 1 and body["learned_share"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--held-out", "--from", "1000000"), "--from 1000000: the data have rows 0 to"),
        (("--data", "random-tokens", "--held-out"), "--held-out: these data hold no rows out"),
    ],
)
def test_what_can_not_be_shown_is_said(capsys, words, message):
    code, shown = inspected(capsys, "quickstart", *words)
    assert code == 2 and message in shown.err
