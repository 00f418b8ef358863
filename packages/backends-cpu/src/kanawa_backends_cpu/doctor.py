"""What a preflight reports about the processor."""

from importlib.util import find_spec

from kanawa.plugins import Finding

from kanawa_backends_cpu.processor import processor


def findings() -> list[Finding]:
    """Returns whether native functions can be compiled here, and what it costs if they can't."""
    name = processor().name
    if find_spec("llvmlite") is not None:
        return [Finding("ok", "cpu", f"{name}; llvmlite is installed: native functions are used")]
    message = f"{name}; llvmlite isn't installed: native functions aren't used"
    meaning = "decoding is slower, and a train step on a single CPU is compiled at each start: it isn't cached"
    return [Finding("ok", "cpu", message, 'pip install "kanawa[cpu]"', meaning)]
