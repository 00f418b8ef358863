"""Everything about one component: what `kanawa show KIND NAME` writes."""

from __future__ import annotations

import inspect
from typing import Any

from kanawa.cli.about.counts import COUNTED, Counts, short
from kanawa.cli.about.fields import FieldLine, field_lines
from kanawa.cli.about.summary import summary
from kanawa.cli.output import write, write_table
from kanawa.errors import UnknownNameError, did_you_mean
from kanawa.plugins import ComponentState, component, host

#: How a component of a kind is put to use; `{name}` is its own.
_USES = {
    "models": "kanawa train {name} --data 'mytext/**/*.txt'; kanawa show EXPERIMENT --modify model:name={name}",
    "experiments": "kanawa train {name}",
    "modifiers": "kanawa show EXPERIMENT --modify {example} --diff EXPERIMENT",
    "optimizers": "kanawa train EXPERIMENT --modify optimizer:name={name}",
    "schedules": "kanawa train EXPERIMENT --set learner.schedule={name}",
    "data": "kanawa train EXPERIMENT --set data={name}",
}


def find_component(kind: str, name: str) -> ComponentState:
    """Returns the state of a component; raises UnknownNameError with near names where the kind has none so called."""
    states = [state for state in host().components(kind) if name in (state.name, state.key)]
    if not states:
        names = {state.name for state in host().components(kind)}
        message = f"no component of kind {kind} is called {name!r}{did_you_mean(name, names)}"
        raise UnknownNameError(message)
    return states[0]


def as_json(kind: str, name: str) -> dict[str, Any]:
    """Returns the component's record; imports it."""
    value = component(kind, name)
    state = find_component(kind, name)
    record: dict[str, Any] = {
        key: str(getattr(state, key)) for key in ("name", "kind", "distribution", "version", "state", "value")
    }
    record |= {"description": summary(state), "documentation": documentation(value)}
    record["fields"] = [line.as_json() for line in field_lines(value)]
    if kind in COUNTED:
        counts = Counts()
        count = counts.of(state)
        counts.save()
        record |= {"parameters": count and count.total, "active_parameters": count and count.active}
    record["use"] = use(state, field_lines(value))
    return record


def documentation(value: Any) -> str:
    """Returns the object's own docstring, unwrapped; "" for an instance, whose class speaks of others too."""
    own = isinstance(value, type) or inspect.isfunction(value)
    return (inspect.getdoc(value) or "") if own else ""


def use(state: ComponentState, fields: list[FieldLine]) -> str:
    """Returns a command that uses the component; "" for a kind that nothing on the command line names."""
    required = [line.name for line in fields if line.default == ""]
    example = f"{state.name}:{','.join(f'{name}=…' for name in required)}" if required else state.name
    return _USES.get(state.kind, "").format(name=state.name, example=example)


def write_page(record: dict[str, Any]) -> None:
    """Writes a record of `as_json` for people."""
    write(f"{record['name']}, one of the {record['kind']}, from {record['distribution']} {record['version']}")
    write(f"{record['value']}\n")
    write(record["documentation"] or record["description"])
    if record.get("parameters"):
        total, active = record["parameters"], record["active_parameters"]
        met = f", of which a token meets {active:,} ({short(active)})" if active != total else ""
        write(f"\n{total:,} parameters ({short(total)}){met}")
    if record["fields"]:
        write()
        rows = [
            (line["name"], line["type"], "required" if line["required"] else line["default"])
            for line in record["fields"]
        ]
        write_table(("FIELD", "TYPE", "DEFAULT"), rows)
    if record["use"]:
        write(f"\nuse it: {record['use']}")
