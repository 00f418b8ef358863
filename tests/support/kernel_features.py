"""The tables of docs/reference/kernel-features.md: what the installed kernels' `supports` say; nothing is compiled."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import kernel_calls as asked
import numpy as np
from kanawa.errors import PluginError
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel
from kanawa.plugins import DeviceSpec
from kanawa.testing.compare import examples_for, operations_with_examples
from kanawa_kernel_tools.examples.space import Search, Space

#: Platforms in the order of the table, each with the device that its kernels are asked about.
PLATFORMS: Mapping[str, str] = {"gpu": "h100", "tpu": "v5p", "neuron": "trn2", "cpu": "cpu"}


@dataclasses.dataclass(frozen=True)
class FeatureTable:
    """What the kernels of an operation take.

    Attributes:
        rows: features to cells, one a kernel.
        chosen: calls to the kernel that each platform's device gets, "reference" where all of its own refuse.
    """

    operation: str
    kernels: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]
    chosen: Mapping[str, Mapping[str, str]]


def feature_tables() -> list[FeatureTable]:
    """Returns the table of each operation that has kernels beside core's reference."""
    kernels = _kernels()
    return [
        _attention(kernels["attention"]) if operation == "attention" else _generic(operation, kernels[operation])
        for operation in operations_with_examples()
        if kernels.get(operation)
    ]


def _kernels() -> dict[str, list[Kernel]]:
    """Returns the kernels that load, references left out, by operation: those of platforms first."""
    from kanawa.plugins import component, host

    by_operation: dict[str, list[Kernel]] = {}
    order = list(PLATFORMS)
    for state in host().components("kernels"):
        operation, platform, name = state.name.split(".")
        if name == "reference" or not state.state.usable:
            continue
        if platform not in order:
            order.append(platform)
        try:
            by_operation.setdefault(operation, []).append(component("kernels", state.key)())
        except PluginError:
            # What can't be loaded is `kanawa plugins`' to report, with its reason; it has no column here.
            continue
    for kernels in by_operation.values():
        kernels.sort(key=lambda kernel: (order.index(kernel.name.split(".")[1]), -kernel.priority, kernel.name))
    return by_operation


def _device(kernel: Kernel) -> DeviceSpec | None:
    from kanawa.plugins.devices import device_specs

    return device_specs().get(PLATFORMS.get(kernel.name.split(".")[1], ""))


def _attention(kernels: list[Kernel]) -> FeatureTable:
    columns = [_Asked(kernel, _device(kernel)) for kernel in kernels]
    rows: dict[str, tuple[str, ...]] = {
        "dtype": tuple(column.dtypes() for column in columns),
        "head dim": tuple(column.head_dims() for column in columns),
        "length": tuple(column.lengths() for column in columns),
        "gradient": tuple("yes" if column.training else "no" for column in columns),
    }
    for label in asked.SERVING:
        rows[label] = tuple("yes" if label in column.serving else "no" for column in columns)
    for label, change in asked.FEATURES.items():
        rows[label] = tuple(column.feature(label, change) for column in columns)
    return FeatureTable("attention", tuple(kernel.name for kernel in kernels), rows, _chosen_attention(kernels))


class _Asked:
    """One attention kernel and the typical calls that it supports, in a dtype that it supports."""

    def __init__(self, kernel: Kernel, device: DeviceSpec | None) -> None:
        self.kernel, self.device = kernel, device
        self.training = self._first(asked.TRAINING) or self._first(asked.PACKED)
        bases = {
            label: self._first(dataclasses.replace(asked.TRAINING, **change)) for label, change in asked.SERVING.items()
        }
        self.serving = {label: base for label, base in bases.items() if base is not None}

    def supports(self, problem: AttentionProblem | None) -> bool:
        return problem is not None and bool(self.kernel.verdict(problem, self.device))

    def _first(self, base: AttentionProblem) -> AttentionProblem | None:
        """Returns the base in the first dtype and page size that it is taken with."""
        pages = (base.page_size,) if base.page_size is None else (base.page_size, 128, 16)
        options = (
            dataclasses.replace(base, dtype=dtype, page_size=page)
            for dtype in ("bfloat16", "float32", "float16")
            for page in pages
        )
        return next((option for option in options if self.supports(option)), None)

    @property
    def packed_alone(self) -> bool:
        """True for a kernel that trains, but on packed rows only."""
        return self.training is not None and self.training.has_segments

    @property
    def bases(self) -> list[AttentionProblem]:
        return [*([self.training] if self.training else []), *self.serving.values()]

    def feature(self, label: str, change: Mapping[str, Any]) -> str:
        """Returns whether a feature is taken in training, in serving or in both; – where it can't be asked."""
        if all(asked.changed(base, change) is None for base in self.bases):
            return "–"
        trained = self.training is not None and self.supports(asked.changed(self.training, change))
        served = any(self.supports(asked.changed(base, change)) for base in self.serving.values())
        possible = any(asked.changed(base, change) is not None for base in self.serving.values())
        if trained and self.packed_alone and "packed" not in label:
            return "packed rows"
        if trained and (served or not possible):
            return "yes"
        if trained:
            return "training"
        return "no" if not served else "serving" if self.training else "yes"

    def dtypes(self) -> str:
        return ", ".join(name for name in asked.DTYPES if self._any({"dtype": name})) or "–"

    def head_dims(self) -> str:
        taken = [(d, v) for d, v in asked.HEAD_DIMS if self._any({"head_dim": d, "v_head_dim": v})]
        if len(taken) == len(asked.HEAD_DIMS):
            return "64 to 256"
        return ", ".join(str(d) if d == v else f"{d} with {v}" for d, v in taken) or "–"

    def lengths(self) -> str:
        for multiple, length in asked.LENGTHS.items():
            if any(self.supports(asked.of_length(base, length)) for base in self.bases if not base.paged):
                return "any" if multiple == 1 else f"multiples of {multiple}"
        return "whole pages" if any(base.paged for base in self.bases) else "–"

    def _any(self, change: Mapping[str, Any]) -> bool:
        return any(self.supports(asked.changed(base, change)) for base in self.bases)


def _chosen_attention(kernels: list[Kernel]) -> dict[str, dict[str, str]]:
    """Returns which kernel each platform's device gets for what models ask."""
    calls: dict[str, AttentionProblem | None] = {
        f"training, {label}": asked.changed(asked.TRAINING, change) for label, change in asked.FEATURES.items()
    }
    for head_dim, value_dim in asked.HEAD_DIMS:
        size = f"{head_dim}" if head_dim == value_dim else f"{head_dim} with {value_dim}"
        dims = {"head_dim": head_dim, "v_head_dim": value_dim}
        calls[f"training, head dim {size}"] = asked.changed(asked.TRAINING, dims)
    packed = {**asked.FEATURES["packed segments"], "head_dim": 256, "v_head_dim": 256, "has_sinks": True}
    calls["training, packed, head dim 256, sinks"] = asked.changed(asked.TRAINING, packed)
    calls["training, float32"] = dataclasses.replace(asked.TRAINING, dtype="float32")
    calls["training, 2047 tokens"] = asked.of_length(asked.TRAINING, 2047)
    for label, change in asked.SERVING.items():
        calls[label] = dataclasses.replace(asked.TRAINING, **change, num_kv_heads=2)
    return _chosen(kernels, {label: problem for label, problem in calls.items() if problem is not None})


def _chosen(kernels: list[Kernel], calls: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    return {
        label: {platform: _best(kernels, platform, problem) for platform in PLATFORMS}
        for label, problem in calls.items()
    }


def _best(kernels: Iterable[Kernel], platform: str, problem: Any) -> str:
    # In the order of selection: a platform's own first, those of the highest priority first.
    own = [kernel for kernel in kernels if kernel.name.split(".")[1] in (platform, "any")]
    taken = (kernel for kernel in own if kernel.verdict(problem, _device(kernel)))
    best = next(taken, None)
    return "reference" if best is None else best.name.split(".")[2]


def _generic(operation: str, kernels: list[Kernel]) -> FeatureTable:
    """Returns a table of the values of each feature that a kernel supports in some problem of the space."""
    space = examples_for(operation).space
    if not isinstance(space, Space):
        return FeatureTable(operation, (), {}, {})
    taken = [_reached(kernel, space) for kernel in kernels]
    rows = {
        feature: tuple(_listed(each.get(feature, ()), values) for each in taken)
        for feature, values in space.features.items()
    }
    return FeatureTable(
        operation, tuple(kernel.name for kernel in kernels), rows, _chosen(kernels, asked.CALLS.get(operation, {}))
    )


def _reached(kernel: Kernel, space: Space) -> dict[str, tuple[Any, ...]]:
    """Returns the values of each feature with which the kernel accepts some problem."""
    search = Search(kernel, space, _device(kernel), np.random.default_rng(0))
    bases = search.bases()

    def accepts(name: str, value: Any, base: Mapping[str, Any]) -> bool:
        """Returns whether it accepts the base with this value, as it is or with one other feature changed."""
        choice = {**base, name: value}
        others = ((n, v) for n, values in space.features.items() if n != name for v in values)
        return search.accepts(choice) or any(search.accepts({**choice, n: v}) for n, v in others)

    return {
        name: tuple(value for value in values if any(accepts(name, value, base) for base in bases))
        for name, values in space.features.items()
    }


def _listed(taken: tuple[Any, ...], values: tuple[Any, ...]) -> str:
    if len(taken) == len(values):
        return "all"
    return ", ".join(_text(value) for value in taken) or "–"


def _text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def as_markdown(tables: list[FeatureTable]) -> str:
    """Returns all tables as Markdown."""
    return "\n\n".join(part for table in tables for part in _parts(table))


def _parts(table: FeatureTable) -> list[str]:
    short = [name.removeprefix(f"{table.operation}.") for name in table.kernels]
    taken = _markdown([f"`{table.operation}`", *short], [[label, *cells] for label, cells in table.rows.items()])
    if not table.chosen:
        return [taken]
    platforms = list(next(iter(table.chosen.values())))
    rows = [[label, *(_marked(chosen[p]) for p in platforms)] for label, chosen in table.chosen.items()]
    return [taken, _markdown([f"`{table.operation}` gets", *platforms], rows)]


def _marked(kernel: str) -> str:
    """Returns the kernel, the reference in bold: those cells are what is missing."""
    return f"**{kernel}**" if kernel == "reference" else kernel


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    # A bar in a cell would begin another.
    lines = [[cell.replace("|", "or") for cell in row] for row in (head, ["---"] * len(head), *rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
