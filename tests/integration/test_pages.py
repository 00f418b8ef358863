"""The README and the documentation are true: their commands and their Python are run, and print what they show."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from replay.page import read  # noqa: E402
from replay.replay import Replay, missing_line, with_arguments  # noqa: E402

PAGES = {path.relative_to(ROOT).as_posix(): read(path) for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]}
RUN = {name: blocks for name, blocks in PAGES.items() if any(block.is_run for block in blocks)}
ALWAYS = [name for name, blocks in RUN.items() if any(block.is_run and not block.is_nightly for block in blocks)]
NIGHTLY = [name for name, blocks in RUN.items() if any(block.is_nightly for block in blocks)]


@pytest.fixture(scope="session")
def shared_environment(tmp_path_factory):
    """The installed packages, on CPU, with a cache of their own."""
    here = pathlib.Path(sys.executable)
    return here, {
        **os.environ,
        "PATH": f"{here.parent}{os.pathsep}{os.environ['PATH']}",
        "KANAWA_CACHE": str(tmp_path_factory.mktemp("cache")),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "",
        "COLUMNS": "120",
    }


@pytest.fixture
def replay(request, shared_environment, environment_with_pip, tmp_path):
    """Replays a page in an empty folder; pages that install something get an environment of their own."""

    def of(name, *, nightly=False):
        blocks = RUN[name]
        python, environment = shared_environment
        if any("pip install" in block.text for block in blocks if block.is_run):
            python, environment = environment_with_pip(environment)
        folder = tmp_path / "here"
        folder.mkdir()
        wrong = Replay(name, folder, environment, python).run(blocks, nightly=nightly)
        if wrong is not None:
            pytest.fail(str(wrong), pytrace=False)

    return of


@pytest.mark.parametrize("name", ALWAYS)
def test_a_page_is_true(name, replay):
    replay(name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NIGHTLY)
def test_a_page_is_true_in_full(name, replay):
    replay(name, nightly=True)


def test_most_pages_are_replayed():
    assert "README.md" in ALWAYS
    assert len(ALWAYS) >= 11, ALWAYS


def test_little_is_left_out_and_never_without_a_reason():
    skipped = [(name, block) for name, blocks in PAGES.items() for block in blocks if "not run" in block.markers]
    brief = [f"{name}:{block.line}" for name, block in skipped if len(block.markers["not run"]) < 12]
    assert not brief, f"say what these would need: {brief}"
    run = sum(block.is_run for blocks in PAGES.values() for block in blocks)
    assert len(skipped) <= run / 4, [f"{name}:{block.line}" for name, block in skipped]


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
