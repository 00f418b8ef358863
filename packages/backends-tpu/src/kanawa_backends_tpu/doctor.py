"""What a preflight can say about TPUs without touching one."""

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires, version

from kanawa.plugins import Finding

_ASKED = re.compile(r"^libtpu\s*\(?\s*([^;)]*)")


def findings() -> list[Finding]:
    """Returns whether the compiler is there, or why it should be, and whether it is the one that JAX asks for."""
    from kanawa_backends_tpu.topology import has_tpu, missing_wheels

    if not missing_wheels():
        installed = [Finding("ok", "tpu", "libtpu is installed: TPU targets can be compiled")]
        return [*installed, *check_version(_installed("libtpu"), _required())]
    fix = 'pip install "kanawa-backends-tpu[tpu]"'
    if has_tpu():
        meaning = "a run would be right, and a hundred times slower than what is paid for"
        return [Finding("error", "tpu", "this machine has TPU chips but no libtpu: JAX uses the CPU", fix, meaning)]
    meaning = "`plan --quick` works; a compiled plan for a TPU doesn't"
    return [Finding("warning", "tpu", "no libtpu: plans for TPU targets can't be compiled", fix, meaning)]


def check_version(here: str | None, declared: Iterable[str]) -> list[Finding]:
    """Returns whether libtpu is of the release that the installed JAX was tested with, by what its `tpu` extra asks."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    asked = next((match[1].strip() for text in declared if (match := _ASKED.match(text))), "")
    try:
        fits = here is None or not asked or SpecifierSet(asked).contains(here, prereleases=True)
    except InvalidSpecifier:
        return []
    if here is None:
        return []
    if fits:
        return [Finding("ok", "libtpu", here)]
    message = f"libtpu {here}, and the installed jax asks for {asked}"
    meaning = "plans compile; on a TPU the runtime may refuse what this JAX sends it"
    return [Finding("warning", "libtpu", message, f'pip install "libtpu{asked}"', meaning)]


def _required() -> list[str]:
    try:
        return list(requires("jax") or ())
    except PackageNotFoundError:
        return []


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
