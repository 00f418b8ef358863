"""Saves a compiled program, so that a run's first step waits for no compiler.

Two forms in one directory: JAX's persistent compilation cache, which `kanawa train` reads when
JAX_COMPILATION_CACHE_DIR points there, and the executable itself where the compiler can write it.
"""

import json
from pathlib import Path
from typing import Any

from kanawa.composition.compile_cache import cache_in
from kanawa.errors import UsageError

from kanawa_parallel.plan.compiled.compilation import Compilation
from kanawa_parallel.plan.report.assemble import installed_versions

_EXECUTABLE = "executable.bin"
_ABOUT = "about.json"


def save(compilation: Compilation | None, folder: Path) -> None:
    """Compiles once more, without the dump's options, into a cache in `folder`, and writes the executable beside it."""
    from jax.experimental import serialize_executable

    if compilation is None or compilation.executable is None:
        message = "--save: there is nothing to save; the program doesn't fit, or its target has no public compiler"
        raise UsageError(message)
    folder.mkdir(parents=True, exist_ok=True)
    with cache_in(str(folder.resolve())):
        executable = compilation.program.lower().compile()
    versions = installed_versions(compilation.target.device)
    about: dict[str, Any] = {"program": compilation.program.name, "versions": versions}
    try:
        # The trees of arguments and results hold our own classes; the loader has them from the same config.
        payload, _, _ = serialize_executable.serialize(executable)
        (folder / _EXECUTABLE).write_bytes(payload)
        about["executable"] = _EXECUTABLE
    except (ValueError, RuntimeError, AttributeError) as error:
        about["executable"] = None
        about["why_not"] = str(error).splitlines()[0]
    (folder / _ABOUT).write_text(json.dumps(about, indent=2), encoding="utf-8")
