"""A cache per test, and a small corpus of Python-like files."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Points KANAWA_CACHE at an empty folder."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("KANAWA_CACHE", str(folder))
    return folder


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Forty Python files of 1 to 40 short functions."""
    root = tmp_path / "sources"
    (root / "inner").mkdir(parents=True)
    for number in range(40):
        body = [
            f"def function_{number}_{i}(self, value: int) -> int:\n    return self.total[{i}] + value * {number}\n\n\n"
            for i in range(number + 1)
        ]
        folder = root / "inner" if number % 3 == 0 else root
        (folder / f"module_{number}.py").write_text("".join(body))
    return root
