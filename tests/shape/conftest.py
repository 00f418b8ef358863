"""The tree under test: every source file of the packages, parsed once."""

import ast
import dataclasses
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Source:
    """One Python file of a package."""

    package: str
    path: pathlib.Path
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """The dotted name it is imported as."""
        parts = self.path.relative_to(ROOT / "packages" / self.package / "src").with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def where(self) -> str:
        """Its path from the root of the repository."""
        return self.path.relative_to(ROOT).as_posix()


def _parse(pattern: str) -> list[Source]:
    found = []
    for path in sorted((ROOT / "packages").glob(pattern)):
        text = path.read_text()
        package = path.relative_to(ROOT / "packages").parts[0]
        found.append(Source(package, path, text, ast.parse(text, filename=str(path))))
    return found


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    return ROOT


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    return _parse("*/src/**/*.py")


@pytest.fixture(scope="session")
def package_tests() -> list[Source]:
    return _parse("*/tests/**/*.py")
