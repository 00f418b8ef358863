"""Everything about one component: what `kanawa show KIND NAME` writes.

Kinds are as people write them: `show modifier moe` and `list modifiers` mean the same one.
"""

from __future__ import annotations

import inspect
from typing import Any

from kanawa.cli.about.counts import COUNTED, Count, Counts
from kanawa.cli.about.summary import summary
from kanawa.cli.output import write, write_table
from kanawa.errors import UnknownNameError, did_you_mean
from kanawa.plugins import component, host

#: How a component of a kind is put to use; `{name}` is its own.
_USES = {
    "models": "kanawa train {name} --data 'mytext/**/*.txt'; kanawa show EXPERIMENT --modify model:name={name}",
    "experiments": "kanawa train {name}",
    "modifiers": "kanawa show EXPERIMENT --modify {example} --diff EXPERIMENT",
    "optimizers": "kanawa train EXPERIMENT --modify optimizer:name={name}",
    "schedules": "kanawa train EXPERIMENT --set learner.schedule={name}",
    "data": "kanawa train EXPERIMENT --set data={name}",
}


def kind_named(text: str) -> str:
    """Returns the kind that a word in the singular or plural means; raises UnknownNameError with near ones."""
    kinds = {*host().kinds(), *(state.kind for state in host().components())}
    word = text.lower().replace("-", "_")
    plurals = (word, f"{word}s", f"{word}es", f"{word.removesuffix('y')}ies", f"{word.removesuffix('us')}ora")
    kind = next((plural for plural in plurals if plural in kinds), None)
    if kind is None:
        message = f"there is no kind {text!r}{did_you_mean(text, kinds)}"
        raise UnknownNameError(message)
    return kind


def as_json(kind: str, name: str) -> dict[str, Any]:
    """Returns the component's record; imports it. Raises UnknownNameError with near names."""
    value = component(kind, name)
    state = next(state for state in host().components(kind) if name in (state.name, state.key))
    record: dict[str, Any] = {
        key: str(getattr(state, key)) for key in ("name", "kind", "distribution", "version", "state", "value")
    }
    # An instance's docstring is its class's, which speaks of others too.
    own = isinstance(value, type) or inspect.isfunction(value)
    record |= {"description": summary(state), "documentation": (inspect.getdoc(value) or "") if own else ""}
    record["fields"] = field_records(value)
    if kind in COUNTED:
        counts = Counts()
        count = counts.of(state)
        counts.save()
        record |= {"parameters": count and count.total, "active_parameters": count and count.active}
    required = ",".join(f"{field['name']}=…" for field in record["fields"] if field["required"])
    example = f"{state.name}:{required}" if required else state.name
    record["use"] = _USES.get(kind, "").format(name=state.name, example=example)
    return record


def write_page(record: dict[str, Any]) -> None:
    """Writes a record of `as_json` for people."""
    write(f"{record['name']}, one of the {record['kind']}, from {record['distribution']} {record['version']}")
    write(f"{record['value']}\n")
    write(record["documentation"] or record["description"])
    if record.get("parameters"):
        write(f"\n{Count(record['parameters'], record['active_parameters'])}")
    if record["fields"]:
        write()
        rows = [(field["name"], field["type"], field["default"] or "required") for field in record["fields"]]
        write_table(("FIELD", "TYPE", "DEFAULT"), rows)
    if record["use"]:
        write(f"\nuse it: {record['use']}")


def field_records(value: Any) -> list[dict[str, Any]]:
    """Returns the fields of a Configurable, or the arguments of a function; nothing for other objects."""
    from kanawa.config import Configurable

    if isinstance(value, type) and issubclass(value, Configurable):
        hidden = value.Config._schema.intrinsic
        fields = value.Config().fields().items()
        return [_record(name, field.type.text, _default(field.default)) for name, field in fields if name not in hidden]
    if not inspect.isfunction(value):
        return []
    parameters = inspect.signature(value).parameters.values()
    return [_record(p.name, _annotation(p), None if p.default is p.empty else repr(p.default)) for p in parameters]


def _record(name: str, type_text: str, default: str | None) -> dict[str, Any]:
    return {"name": name, "type": type_text, "default": default, "required": default is None}


def _default(default: Any) -> str | None:
    """Returns a default as text, None where a value is required, "from parent" where a parent sets it."""
    from kanawa.config import FROM_PARENT, REQUIRED, Config
    from kanawa.config.value_text import value_text

    if default is REQUIRED or default is FROM_PARENT:
        return None if default is REQUIRED else "from parent"
    if isinstance(default, Config) and default._target is not None:
        return default._target.__qualname__
    return value_text(default)


def _annotation(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return ""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__qualname__", str(annotation))
