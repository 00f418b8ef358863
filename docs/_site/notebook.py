"""A page as a notebook: its prose, its Python, and its commands behind `!`. No outputs: nobody has run it yet.

`python docs/_site/notebook.py` writes docs/notebooks/own-text.ipynb anew; a test compares it with the page.
"""

import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

DOCS = pathlib.Path(__file__).parents[1]
PAGE, NOTEBOOK = DOCS / "tutorial.md", DOCS / "notebooks" / "own-text.ipynb"
_FENCE = re.compile(r"^```([a-z]*) *$")
_MARKER = re.compile(r"^<!-- .* -->$")
_LINK = re.compile(r"\]\((?!https?:)([\w./-]+\.md)")
_NOTE = (
    "\n\n*Made from the page of this name in the documentation, whose commands a test runs. It needs `kanawa[train]`.*"
)


def notebook(page: pathlib.Path) -> dict[str, Any]:
    """Returns the notebook of a page, as nbformat 4.5 has it."""
    cells = [_cell(number, kind, text) for number, (kind, text) in enumerate(_parts(page.read_text()))]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def written(page: pathlib.Path) -> str:
    """Returns the text of the page's notebook."""
    return json.dumps(notebook(page), indent=1, ensure_ascii=False) + "\n"


def _cell(number: int, kind: str, text: str) -> dict[str, Any]:
    lines = text.strip("\n").splitlines(keepends=True)
    cell: dict[str, Any] = {"cell_type": kind, "id": f"part-{number}", "metadata": {}, "source": lines}
    return cell if kind == "markdown" else cell | {"execution_count": None, "outputs": []}


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yields (kind of cell, text) in the order of the page; what commands print stays prose."""
    prose: list[str] = []
    lines = iter(text.splitlines())
    first = True
    for line in lines:
        fence = _FENCE.match(line)
        if fence is None:
            if not _MARKER.match(line):
                prose.append(_LINK.sub(r"](../\1", line))
            continue
        block = [row for row in iter(lambda: next(lines), "```")]
        if fence[1] not in ("python", "sh"):
            prose += [line, *block, "```"]
            continue
        if any(row.strip() for row in prose):
            yield "markdown", _noted(prose) if first else "\n".join(prose)
            first = False
        prose = []
        yield "code", "\n".join(f"!{row}" if fence[1] == "sh" and row.strip() else row for row in block)
    if any(row.strip() for row in prose):
        yield "markdown", "\n".join(prose)


def _noted(prose: list[str]) -> str:
    """Returns the first cell, which says where the notebook comes from below its heading."""
    heading, _, rest = "\n".join(prose).strip("\n").partition("\n")
    return heading + _NOTE + "\n" + rest


if __name__ == "__main__":
    NOTEBOOK.parent.mkdir(exist_ok=True)
    NOTEBOOK.write_text(written(PAGE))
