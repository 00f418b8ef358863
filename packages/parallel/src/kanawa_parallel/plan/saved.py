"""Keeps a compiled program, so that a run's first step waits for no compiler.

Two forms in one directory: JAX's persistent compilation cache, which `kanawa train` reads when
JAX_COMPILATION_CACHE_DIR points there, and the executable itself where the compiler can write it.
"""

import json
from pathlib import Path
from typing import Any

import jax
from kanawa.errors import UsageError

from kanawa_parallel.plan.analyse import installed
from kanawa_parallel.plan.compilation import Compilation

_EXECUTABLE = "executable.bin"
_ABOUT = "about.json"


def save(compilation: Compilation, folder: Path) -> None:
    """Compiles once more, without the dump's options, into a cache in `folder`, and writes the executable beside it."""
    from jax.experimental import serialize_executable

    if compilation.executable is None or not compilation.compiled:
        message = "--save: there is nothing to save; the program doesn't fit, or its target has no public compiler"
        raise UsageError(message)
    folder.mkdir(parents=True, exist_ok=True)
    before = jax.config.jax_compilation_cache_dir
    least = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_compilation_cache_dir", str(folder.resolve()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    try:
        # JAX opens its cache once a process: a changed directory counts only after a reset, here and on the way back.
        _reset_cache()
        executable = compilation.program.lower().compile()
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", least)
        _reset_cache()
    about: dict[str, Any] = {"program": compilation.program.name, "versions": installed()}
    try:
        # The trees of arguments and results hold our own classes; whoever loads has them from the same config.
        payload, _, _ = serialize_executable.serialize(executable)
        (folder / _EXECUTABLE).write_bytes(payload)
        about["executable"] = _EXECUTABLE
    except (ValueError, RuntimeError, AttributeError) as error:
        about["executable"] = None
        about["why_not"] = str(error).splitlines()[0]
    (folder / _ABOUT).write_text(json.dumps(about, indent=2), encoding="utf-8")


def _reset_cache() -> None:
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()
