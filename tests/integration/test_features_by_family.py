"""The page that says which families each feature reaches says what the models do."""

import importlib
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "features-by-family.md").read_text().splitlines()


@pytest.fixture(scope="module")
def features():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module("features_by_family")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def rows_of(features, names):
    models = {name: model for name, model in features.families().items() if names is None or name in names}
    return [line for line in features.table(models).splitlines() if line.startswith("| `")]


def test_rows_of_the_page_are_as_measured(features):
    rows = rows_of(features, ("gemma2", "qwen3_next", "mamba2"))
    assert len(rows) == 3
    assert set(rows) <= set(PAGE)


@pytest.mark.nightly
def test_the_page_is_as_measured(features):
    assert [line for line in PAGE if line.startswith("| `")] == rows_of(features, None)
