"""How a process that computes on the CPU is prepared, and what its compiled programs depend on."""

import platform
import warnings

from kanawa_backends_cpu.allocator import keep_freed_memory
from kanawa_backends_cpu.processor import processor

#: jaxlib can't serialize a program that calls its oneDNN, as serving has, and training without llvmlite.
_NOT_STORED = "Error writing persistent compilation cache entry.*bad_alloc"


def prepare_process(purpose: str) -> None:
    """Sets the allocator, and drops the warning about programs that the compile cache can't store."""
    keep_freed_memory(in_threads=purpose == "serve")
    warnings.filterwarnings("ignore", message=_NOT_STORED, category=UserWarning)


def compile_cache_key() -> list[str]:
    """Returns the architecture and its instruction sets, which compiled CPU programs need."""
    return [platform.machine(), *sorted(processor().features)]
