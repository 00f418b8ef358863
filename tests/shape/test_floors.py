"""No folder imports one above or beside it, and neither folders nor files import each other in a circle."""

import pathlib

import pytest
from floors import FLOORS
from tree_imports import Arrow, arrows, arrows_up, circles, folder_circles, folder_of, package_files

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = sorted(path.name for path in (ROOT / "packages").iterdir())


def breaches(source: pathlib.Path, floors) -> list[str]:
    """Returns the imports of a package that go up, and its circles, one line each."""
    files = package_files(source)
    found = arrows(files)
    around = circles((a.importer, a.imported) for a in found) + folder_circles(found, files)
    up = arrows_up(found, floors)
    return [
        *(f"{a.where} imports {a.imported}, which isn't below {folder_of(a.importer)}" for a in up),
        *(f"a circle: {', '.join(circle)}" for circle in around),
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_down(package):
    found = breaches(ROOT / "packages" / package / "src", FLOORS[package])
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_has_a_floor_and_every_floor_is_a_folder(package):
    tops = {folder_of(module) for module in package_files(ROOT / "packages" / package / "src")} - {""}
    named = [name for floor in FLOORS[package] for name in floor]
    assert len(named) == len(set(named))
    assert tops <= set(named), f"give these a floor: {sorted(tops - set(named))}"


@pytest.fixture
def planted(tmp_path):
    """Returns a function that writes a package of files (path to text) and returns its `src`."""

    def write(**files):
        for name, text in {"": "", "low": "", "high": "", **files}.items():
            path = tmp_path / "src" / "sample" / name.replace("__", "/")
            (path / "__init__.py" if name in ("", "low", "high") else path.with_suffix(".py")).parent.mkdir(
                parents=True, exist_ok=True
            )
            (path / "__init__.py" if name in ("", "low", "high") else path.with_suffix(".py")).write_text(text)
        return tmp_path / "src"

    return write


TWO = (("low",), ("high",))


@pytest.mark.parametrize(
    "text",
    [
        "from sample.high import tower\n",
        "import sample.high.tower\n",
        "def f():\n    from sample.high.tower import x\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..high import tower\n",
        "import sample\n",
    ],
)
def test_an_arrow_up_is_seen(planted, text):
    source = planted(low__cellar=text, high__tower="from sample.low import cellar\n" * 0)
    assert any("low/cellar.py" in line and "isn't below low" in line for line in breaches(source, TWO)), text
    assert breaches(planted(low__cellar="", high__tower="from sample.low import cellar\n"), TWO) == []


def test_folders_on_one_floor_do_not_import_each_other(planted):
    source = planted(low__cellar="from sample.high import tower\n", high__tower="")
    assert len(breaches(source, (("low", "high"),))) == 1


def test_circles_of_files_and_of_folders_are_seen(planted):
    source = planted(low__a="from sample.low import b\n", low__b="def f():\n    from .a import g\n")
    assert breaches(source, TWO) == ["a circle: sample.low.a, sample.low.b"]
    nested = [
        Arrow("sample.low.x.a", "sample.low.y.b", ""),
        Arrow("sample.low.y.c", "sample.low.x.d", ""),
    ]
    init = dict.fromkeys(("sample.low.x", "sample.low.y"), pathlib.Path("__init__.py"))
    assert folder_circles(nested, init) == [["sample.low.x", "sample.low.y"]]
    assert folder_circles(nested[:1], init) == []
