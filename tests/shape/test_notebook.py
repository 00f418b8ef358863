"""The notebook is the tutorial: same prose, same commands, and no output that nobody saw."""

import importlib.util
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from replay.page import read  # noqa: E402

SPEC = importlib.util.spec_from_file_location("notebook_of_a_page", ROOT / "docs" / "_site" / "notebook.py")
MAKER = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(MAKER)


def cells(kind):
    return [cell for cell in json.loads(MAKER.NOTEBOOK.read_text())["cells"] if cell["cell_type"] == kind]


def test_it_is_made_from_the_page_as_it_stands():
    said = "docs/tutorial.md changed: python docs/_site/notebook.py writes its notebook anew"
    assert MAKER.NOTEBOOK.read_text() == MAKER.written(MAKER.PAGE), said


def test_it_has_every_command_of_the_page_in_order_and_no_outputs():
    wanted = [block.text for block in read(MAKER.PAGE) if block.language in ("sh", "python")]
    code = ["".join(cell["source"]) for cell in cells("code")]
    assert len(wanted) >= 5
    assert [text.replace("\n!", "\n").removeprefix("!").strip() for text in code] == [text.strip() for text in wanted]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells("code"))


def test_it_speaks_python_and_shell_that_a_notebook_understands():
    for cell in cells("code"):
        shell = [line for line in cell["source"] if line.startswith("!")]
        text = "".join(cell["source"])
        assert shell or compile(text, "cell", "exec")
        assert not any(line.rstrip().endswith("\\") for line in shell), "a continued line needs its own !"


def test_links_lead_to_pages_that_are_there():
    prose = "".join(line for cell in cells("markdown") for line in cell["source"])
    names = MAKER.re.findall(r"\]\((\.\./[\w./-]+\.md)", prose)
    assert names
    assert all((MAKER.NOTEBOOK.parent / name).exists() for name in names)
