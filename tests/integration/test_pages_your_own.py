"""Packages of strangers, written outside the repository from the pages alone: each builds, passes the kit, is used."""

import pytest
from replay.pages import ALWAYS, LONG, PAGES, YOUR_OWN

OWN = [name for name in ALWAYS if name.startswith(YOUR_OWN)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in LONG else ()) for name in OWN]
)
def test_a_package_is_written_from_its_page(name, replay):
    replay(name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", OWN)
def test_a_package_is_installed_by_pip(name, replay):
    replay(name, quick=False)


def test_every_page_builds_tests_and_uses_its_package():
    assert {name.removeprefix(YOUR_OWN) for name in OWN} >= {
        "gate.md",
        "optimizer.md",
        "kernel.md",
        "service.md",
        "experiment.md",
        "backend.md",
    }
    for name in OWN:
        commands = "".join(block.text for block in PAGES[name] if block.is_run and block.language == "sh")
        for step in ("kanawa new plugin", "pip install -q ./", "python -m pytest", "kanawa train"):
            assert step in commands, f"{name} never runs {step!r}"
