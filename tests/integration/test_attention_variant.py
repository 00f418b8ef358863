"""An attention variant is one new file and one entry point: a real one, as a wheel, in every dense model we ship."""

import configparser
import pathlib
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "examples" / "plugins" / "kanawa-differential-attention"
sys.path.insert(0, str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def wheel(build, tmp_path_factory):
    return build(PLUGIN, tmp_path_factory.mktemp("variant"))


def test_the_wheel_holds_one_module_and_one_entry_point(wheel):
    from loc_complexity.statements import statements

    with zipfile.ZipFile(wheel) as archive:
        sources = {n: archive.read(n).decode() for n in archive.namelist() if n.endswith(".py")}
        (points,) = (n for n in archive.namelist() if n.endswith("entry_points.txt"))
        parser = configparser.ConfigParser(delimiters=("=",))
        parser.read_string(archive.read(points).decode())
    filled = {name: statements(name, text) for name, text in sources.items()}
    assert [name for name, found in filled.items() if found] == ["kanawa_differential_attention/differential.py"]
    target = "kanawa_differential_attention.differential:UseDifferential"
    listed = {group: dict(parser[group]) for group in parser.sections()}
    assert listed == {"kanawa.modifiers": {"differential-attention": target}}
    assert sum(map(len, filled.values())) < 50


def test_it_reaches_whatever_has_a_dot_product_and_nothing_else(wheel, fresh_installation):
    installation = fresh_installation()
    installation.install(wheel)
    for experiment in ("quickstart", "llama2-7b"):
        found = installation.json("show", experiment, "--modify", "differential-attention", "--diff", experiment)
        assert found
        assert all("dot_product" in change["path"] for change in found)
