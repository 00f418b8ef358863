"""The README and the documentation are true: their commands and their Python are run, and print what they show."""

import pytest
from replay.page import read
from replay.pages import ALWAYS, LONG, NIGHTLY, PAGES, YOUR_OWN
from replay.replay import Replay, missing_line, with_arguments


def marked(name):
    """Returns a page's name as a parameter, nightly where its replay takes long."""
    return pytest.param(name, marks=pytest.mark.nightly if name in LONG else ())


@pytest.mark.parametrize("name", [marked(name) for name in ALWAYS if not name.startswith(YOUR_OWN)])
def test_a_page_is_true(name, replay):
    replay(name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NIGHTLY)
def test_a_page_is_true_in_full(name, replay):
    replay(name, nightly=True)


def test_most_pages_are_replayed():
    assert "README.md" in ALWAYS
    assert "docs/tutorial.md" in ALWAYS
    assert len(ALWAYS) >= 20, ALWAYS
    assert set(ALWAYS) >= LONG, "a name in LONG is no page"


def test_little_is_left_out_and_never_without_a_reason():
    skipped = [(name, block) for name, blocks in PAGES.items() for block in blocks if "not run" in block.markers]
    brief = [f"{name}:{block.line}" for name, block in skipped if len(block.markers["not run"]) < 12]
    assert not brief, f"say what these would need: {brief}"
    run = sum(block.is_run for blocks in PAGES.values() for block in blocks)
    # Servers, gangs and other people's engines are started by tests of their own.
    assert len(skipped) <= 0.4 * run, [f"{name}:{block.line}" for name, block in skipped]


def test_a_false_page_is_found(shared_environment, tmp_path):
    python, environment = shared_environment
    page = tmp_path / "page.md"
    commands = "```sh\necho one two\n```\n\n```text\none {word}\n```\n\n"
    text = commands + "```python\nx = 1\n```\n\n```python\nassert x == {x}\n```\n"

    def wrong(word, x):
        page.write_text(text.format(word=word, x=x))
        return Replay("page.md", tmp_path, environment, python).run(read(page))

    assert wrong("two", 1) is None
    assert "the page shows 'one three'" in wrong("three", 1).happened
    assert "AssertionError" in wrong("two", 2).happened
    assert wrong("two", 2).line == 14


def test_output_may_leave_things_out():
    assert missing_line("a … c\nlast", "x a b  c\ny\nlast") is None
    assert missing_line("last\na … c", "a b c\nlast") == "a … c"


def test_arguments_reach_trainings_only():
    script = "kanawa train x \\\n  --steps 9   # note\nkanawa eval runs/x"
    assert with_arguments(script, "--steps 1") == "kanawa train x    --steps 9   --steps 1\nkanawa eval runs/x\n"
