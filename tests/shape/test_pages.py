"""Every page can be reached and every link leads somewhere: on disk, on the site, and on a package index."""

import ast
import fnmatch
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
ELSEWHERE = ("https://", "http://", "mailto:")


def tracked(*patterns: str) -> list[pathlib.Path]:
    listing = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).exists()]


def links(text: str) -> list[str]:
    """Returns the link targets of a page that aren't addresses; what code shows is no link."""
    prose = CODE.sub("", FENCE.sub("", text))
    return [target for target in LINK.findall(prose) if not target.startswith(ELSEWHERE)]


def anchors(text: str) -> set[str]:
    """Returns what a page's headings are reached by."""
    titles = [re.sub(r"[`*]|\]\([^)]*\)|\[", "", title).lower() for title in HEADING.findall(FENCE.sub("", text))]
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in titles}


#: What a page's Python may import of ours: everything else is reached by `kn.…`.
FRONT_DOOR = ("kanawa", "kanawa.contracts")
#: Pages on internals, for those who write plugins or change Kanawa: they may import from anywhere.
INTERNALS = (
    "docs/conformance-kit.md",
    "docs/modules-and-contexts.md",
    "docs/plugins.md",
    "docs/writing-a-plugin.md",
    "docs/your-own/*.md",
)
PYTHON = re.compile(r"^( *)```python *\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
PAGES = {path.relative_to(ROOT).as_posix(): path for path in tracked("*.md")}
PACKAGE_PAGES = [name for name in PAGES if name.startswith("packages/")]


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    path = PAGES[name]
    dead = []
    for target in links(path.read_text()):
        file, _, anchor = target.partition("#")
        goal = (path.parent / file).resolve() if file else path
        if not goal.exists():
            dead.append(f"{target}: no such file")
        elif anchor and goal.suffix == ".md" and anchor not in anchors(goal.read_text()):
            dead.append(f"{target}: no such heading; there are {sorted(anchors(goal.read_text()))}")
    assert not dead, "\n".join(dead)


def test_no_page_of_the_site_links_outside_it():
    docs = ROOT / "docs"
    outside = [
        f"{name}: {target}"
        for name, path in PAGES.items()
        if path.is_relative_to(docs)
        for target in links(path.read_text())
        if not (path.parent / target).resolve().is_relative_to(docs)
    ]
    assert not outside, "name the file in backticks instead:\n" + "\n".join(outside)


def test_a_packages_pages_need_no_repository_around_them():
    """They are shown by a package index, where a relative link is dead."""
    relative = [f"{name}: {target}" for name in PACKAGE_PAGES for target in links(PAGES[name].read_text())]
    assert PACKAGE_PAGES
    assert not relative, "name the page in backticks until there is an address:\n" + "\n".join(relative)


def test_every_page_is_in_the_navigation():
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    there = [name.removeprefix("docs/") for name in PAGES if name.startswith("docs/")]
    assert sorted(set(listed)) == sorted(listed), "a page is listed twice"
    assert sorted(listed) == sorted(there), "mkdocs.yml lists the pages of docs/, each one"


def deep_imports(text: str) -> list[str]:
    """Returns the modules of ours that a page's Python imports past the front door."""
    modules = []
    for indent, block in PYTHON.findall(text):
        for node in ast.walk(ast.parse(re.sub(f"^{indent}", "", block, flags=re.MULTILINE))):
            if isinstance(node, ast.Import):
                modules += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules.append(node.module or "")
    return [name for name in modules if name.partition(".")[0].startswith("kanawa") and name not in FRONT_DOOR]


@pytest.mark.parametrize("name", [name for name in PAGES if name == "README.md" or name.startswith("docs/")])
def test_pages_use_the_front_door(name):
    deep = deep_imports(PAGES[name].read_text())
    if not any(fnmatch.fnmatch(name, page) for page in INTERNALS):
        assert not deep, f"{name} imports {deep}: use kn.experiment, plan, train, open, component; see docs/python.md"


def test_every_page_on_internals_is_one():
    for page in INTERNALS:
        assert any(deep_imports(PAGES[name].read_text()) for name in fnmatch.filter(PAGES, page)), page


def test_a_deep_import_is_seen():
    text = "```python\nimport kanawa as kn, kanawa.kernels.choice\nfrom kanawa_runtime.serve import x\n```\n"
    assert deep_imports(text) == ["kanawa.kernels.choice", "kanawa_runtime.serve"]
    assert deep_imports("- ```python\n  import kanawa as kn\n  from kanawa.contracts import Batch\n  ```\n") == []


def test_dead_links_are_seen():
    text = "# A `b` c\n[x](gone.md) `[y](code.md)`\n```md\n[z](fence.md)\n```\n[w](https://example.org)"
    assert links(text) == ["gone.md"]
    assert anchors(text) == {"a-b-c"}
