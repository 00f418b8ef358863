"""Answers of placement, cached on disk: the same question of the same versions is planned once on a machine."""

import contextlib
import hashlib
import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from kanawa.composition.placement import PlacementQuestion
from kanawa.config import Config, digest
from kanawa.local_path import cache_folder
from kanawa.plugins import MeshRule
from kanawa.plugins.sources import plugins_signature

from kanawa_parallel.plan.report.assemble import installed_versions

#: What was answered in this process: composing asks again for each change that isn't one.
_ANSWERS: dict[str, MeshRule | None] = {}
#: What of a rule an answer consists of.
_FIELDS = ("name", "platform", "mesh", "dcn", "modifiers", "reason")


def key_of(question: PlacementQuestion, config: Config) -> tuple[str, ...]:
    """Returns what an answer depends on: `config` on a mesh of `fsdp` alone, target, shipped rule, compilers."""
    target = question.target
    compilers = repr(sorted(installed_versions(target.device).items()))
    return digest(config, "all"), target.selector, repr(target.device), compilers, repr(question.rule)


def remembered(key: tuple[str, ...], chosen: Callable[[], MeshRule | None]) -> MeshRule | None:
    """Returns the answer to a question, planned by `chosen` unless the cache has it.

    The cache holds for the installed plugins and their sources, and for this JAX; without a writable folder the
    question is planned again in each process.
    """
    digest = hashlib.sha256("\n".join((jax.__version__, *key)).encode()).hexdigest()
    if digest not in _ANSWERS:
        file, signature = cache_folder() / "placements.json", plugins_signature()
        known = _read(file, signature)
        if digest in known:
            _ANSWERS[digest] = _rule(known[digest])
        else:
            rule = _ANSWERS[digest] = chosen()
            # Another process may have answered other questions meanwhile.
            _write(file, signature, {**_read(file, signature), digest: rule and {n: getattr(rule, n) for n in _FIELDS}})
    return _ANSWERS[digest]


def _rule(held: Mapping[str, Any] | None) -> MeshRule | None:
    if held is None:
        return None
    modifiers = tuple(
        (name, {key: _tuples(value) for key, value in values.items()}) for name, values in held["modifiers"]
    )
    return MeshRule(**{**held, "modifiers": modifiers})


def _tuples(value: Any) -> Any:
    """Returns a value as it was before JSON, which has no tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _read(file: Path, signature: str) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
        record = json.loads(file.read_text("utf-8"))
        if record.get("signature") == signature:
            return dict(record["answers"])
    return {}


def _write(file: Path, signature: str, answers: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{file.name}.{uuid.uuid4().hex[:12]}")
        partial.write_text(json.dumps({"signature": signature, "answers": answers}), "utf-8")
        partial.replace(file)
