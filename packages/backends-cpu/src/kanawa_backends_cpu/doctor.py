"""What a preflight reports about the processor."""

from importlib.util import find_spec

from kanawa.plugins import Finding


def findings() -> list[Finding]:
    """Returns whether native functions can be compiled here."""
    if find_spec("llvmlite") is None:
        fix = 'pip install "kanawa[cpu]"'
        meaning = "a train step on one CPU is compiled at each start: jaxlib can't store oneDNN's calls in its cache"
        return [Finding("ok", "cpu", "llvmlite isn't installed: no native functions on CPUs", fix, meaning)]
    return [Finding("ok", "cpu", "llvmlite is installed: native functions on CPUs")]
