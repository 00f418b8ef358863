"""The mesh and what is sharded where, as an SVG that needs nothing else."""

import math
from collections.abc import Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape

import jax
from kanawa.arrays.rules import Assignment, assign, assign_param
from kanawa.arrays.spec import ParamSpec
from kanawa.composition.experiment import Composition
from kanawa.composition.prepare import prepare
from kanawa.contracts import BATCH_AXES
from kanawa.module import Module, param_specs

#: One colour for each mesh axis, the same in every picture.
_COLOURS = {
    "stage": "#9467bd",
    "replica": "#8c8c8c",
    "data": "#1f77b4",
    "fsdp": "#2ca02c",
    "expert": "#d62728",
    "context": "#ff7f0e",
    "tensor": "#17a2b8",
}
#: Activations that every language model has, by the names layers give their axes.
_ACTIVATIONS = {
    "token ids": BATCH_AXES.input_ids,
    "residual stream": ("batch", "length", "embed"),
    "queries": ("batch", "length", "heads", "head_dim"),
    "keys, values": ("batch", "length", "kv_heads", "head_dim"),
    "feed-forward hidden": ("batch", "length", "mlp"),
    "logits": ("batch", "length", "vocab"),
}
_ROW, _LEFT, _CELL, _GAP = 24, 16, 13, 2
_WIDTH = 980
_MOST_DEVICES = 32
_STYLE = (
    "text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#222}.h{font-weight:600;font-size:14px}.m{fill:#666}"
    "rect{stroke:#fff}.w{fill:#eee;stroke:#ccc}"
)


def picture(composition: Composition) -> str:
    """Returns the SVG text of a composition's mesh, and of what is sharded where."""
    prepared = prepare(composition, "abstract")
    plan, abstract_mesh = prepared.environment.plan, prepared.environment.mesh
    mesh = {} if abstract_mesh is None else dict(abstract_mesh.shape)
    title = f"{composition.name} on {composition.required_target().selector}"
    rows = list(parameter_rows(prepared.workload.model, plan.param_rules, mesh))
    activations = [
        (name, tuple(axes), assign(tuple(axes), plan.activation_rules, mesh)) for name, axes in _ACTIVATIONS.items()
    ]
    return draw(title, mesh, rows, activations)


def parameter_rows(
    model: Module, rules: Any, mesh: Mapping[str, int]
) -> Iterator[tuple[str, tuple[str | None, ...], Assignment]]:
    """Yields (path, logical axes, mesh axes of each dimension) of every parameter."""
    specs = param_specs(model)
    leaves = jax.tree_util.tree_leaves_with_path(specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    for path, spec in leaves:
        name = ".".join(str(part.key) for part in path)
        yield name, tuple(spec.axes), assign_param(spec.shape, spec.axes, rules, mesh)


def draw(
    title: str,
    mesh: Mapping[str, int],
    parameters: list[tuple[str, tuple[str | None, ...], Assignment]],
    activations: list[tuple[str, tuple[str | None, ...], Assignment]],
) -> str:
    """Returns the SVG text: the mesh as nested blocks of devices, then a row for every parameter and activation."""
    parts: list[str] = []
    y = _text(parts, _LEFT, 26, title, "h")
    y = _legend(parts, mesh, y + 8)
    y = _devices(parts, mesh, y + 6)
    for heading, rows in (("parameters, gradients, optimizer state", parameters), ("activations", activations)):
        y = _text(parts, _LEFT, y + 26, heading, "h")
        for row in rows:
            y = _array(parts, row, mesh, y + 4)
    size = f'width="{_WIDTH}" height="{y + 20}" viewBox="0 0 {_WIDTH} {y + 20}"'
    paper = '<rect class="w" width="100%" height="100%" style="fill:#fff"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, f"<style>{_STYLE}</style>", paper, *parts, "</svg>", ""])


def _legend(parts: list[str], mesh: Mapping[str, int], y: int) -> int:
    x = _LEFT
    for name, size in mesh.items():
        parts.append(f'<rect x="{x}" y="{y}" width="14" height="14" fill="{_COLOURS.get(name, "#555")}"/>')
        _text(parts, x + 20, y + 12, f"{name} {size}")
        x += 34 + 8 * len(f"{name} {size}")
    if not mesh:
        _text(parts, x, y + 12, "one device: nothing is sharded", "m")
    return y + 20


def _devices(parts: list[str], mesh: Mapping[str, int], y: int) -> int:
    """Draws the first devices in mesh order: rows of the last axis, one frame for each index of the axes before."""
    sizes = [size for size in mesh.values() if size > 1]
    if not sizes:
        return y
    columns = min(sizes[-1], _MOST_DEVICES)
    lines = min(math.prod(sizes[:-1]), 8)
    last = [name for name, size in mesh.items() if size > 1][-1]
    for line in range(lines):
        for column in range(columns):
            x = _LEFT + column * (_CELL + _GAP)
            parts.append(
                f'<rect x="{x}" y="{y + line * (_CELL + _GAP)}" width="{_CELL}" height="{_CELL}" '
                f'fill="{_COLOURS.get(last, "#555")}" opacity="{0.45 + 0.55 * (line % 2):.2f}"/>'
            )
    shown, total = columns * lines, math.prod(sizes)
    bottom = y + lines * (_CELL + _GAP)
    more = "" if shown == total else f" (first {shown} shown)"
    return _text(parts, _LEFT, bottom + 14, f"{total} devices{more}; a row is one group along {last}", "m") + 4


def _array(parts: list[str], row: tuple[Any, ...], mesh: Mapping[str, int], y: int) -> int:
    """Draws one array: a box for each dimension, in the colours of the mesh axes that split it."""
    name, axes, split = row
    _text(parts, _LEFT, y + 15, name)
    x = 400
    copies = math.prod(mesh.values()) if mesh else 1
    for axis, by in zip(axes, split, strict=True):
        width = max(54, 8 * len(axis or "1") + 12)
        parts.append(f'<rect class="w" x="{x}" y="{y}" width="{width}" height="{_ROW - 4}"/>')
        for index, mesh_axis in enumerate(by):
            part = width / len(by)
            colour = _COLOURS.get(mesh_axis, "#555")
            parts.append(
                f'<rect x="{x + index * part:.1f}" y="{y}" width="{part:.1f}" height="{_ROW - 4}" fill="{colour}" '
                'opacity="0.55"/>'
            )
            # Each axis that splits the array divides the number of devices that hold the same part.
            copies //= mesh[mesh_axis]
        _text(parts, x + 6, y + 15, axis or "1")
        x += width + 3
    _text(parts, x + 6, y + 15, "one copy" if copies == 1 else f"{copies} copies", "m")
    return y + _ROW


def _text(parts: list[str], x: float, y: int, text: str, kind: str = "") -> int:
    chosen = f' class="{kind}"' if kind else ""
    parts.append(f'<text x="{x}" y="{y}"{chosen}>{escape(text)}</text>')
    return y
