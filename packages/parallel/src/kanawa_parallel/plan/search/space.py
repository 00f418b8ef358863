"""What is searched: meshes that divide a target's devices, policies of rematerialisation, microbatches."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kanawa.arrays.axes import MESH_AXES
from kanawa.arrays.spec import ParamSpec
from kanawa.arrays.tree import flatten_paths
from kanawa.composition.target import Target
from kanawa.errors import UsageError, did_you_mean
from kanawa.module import Module, param_specs
from kanawa.plugins import host

#: Axes of the meshes that are searched, slowest links first; pipelines, rings and replicas are not.
AXES = ("data", "fsdp", "expert", "tensor")
#: What `--fix` takes besides axes.
POLICY, MICROBATCHES = "policy", "microbatches"
#: Beyond this a tensor-parallel group's collectives outlast its matmuls on every link there is.
_WIDEST_TENSOR = 16
_MICROBATCHES = (1, 2, 4, 8)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One choice; None leaves the experiment and its mesh rule as they are."""

    target: str
    mesh: tuple[tuple[str, int], ...] | None = None
    policy: str | None = None
    microbatches: int | None = None
    slices: int = 1

    @property
    def modifiers(self) -> tuple[str, ...]:
        """What `train` and `plan` take to make it so."""
        chosen = []
        if self.mesh is not None:
            axes = json.dumps(dict(self.mesh), separators=(",", ":"))
            across = ',dcn_axes={"data":-1}' if self.slices > 1 else ""
            chosen.append(f"mesh:axes={axes}{across}")
        if self.policy is not None:
            chosen.append(f"remat:policy={self.policy}")
        if self.microbatches is not None:
            chosen.append(f"accumulate:microbatches={self.microbatches}")
        return tuple(chosen)


def fixed_choices(options: Sequence[str]) -> dict[str, str]:
    """Returns {axis, policy or microbatches: value} of `--fix NAME=VALUE`; raises UsageError for anything else."""
    names = (*AXES, POLICY, MICROBATCHES)
    fixed: dict[str, str] = {}
    for each in options:
        name, equals, value = each.partition("=")
        if name in MESH_AXES and name not in AXES:
            message = (
                f"--fix {each}: the search makes meshes of {', '.join(AXES)}; set {name} with --modify mesh:axes=…"
            )
            raise UsageError(message)
        if not equals or name not in names:
            message = f"--fix {each}: {name!r} isn't searched{did_you_mean(name, names)}; expected NAME=VALUE"
            raise UsageError(message)
        if name != POLICY and (not value.isdecimal() or int(value) < 1):
            message = f"--fix {each}: expected a whole number from 1"
            raise UsageError(message)
        if name in fixed:
            message = f"--fix {each}: {name} is fixed at {fixed[name]} already; set it once"
            raise UsageError(message)
        # Sizes are compared as they are written: 02 is 2.
        fixed[name] = value if name == POLICY else str(int(value))
    if POLICY in fixed and fixed[POLICY] not in policies({}):
        message = f"--fix policy={fixed[POLICY]}: no policy of that name{did_you_mean(fixed[POLICY], policies({}))}"
        raise UsageError(message)
    return fixed


def meshes(target: Target, model: Module, fixed: Mapping[str, str]) -> list[tuple[tuple[str, int], ...]]:
    """Returns every mesh of `AXES` that fills a slice, and whose tensor-parallel groups stay in a fast domain.

    Raises UsageError where the fixed sizes don't divide the slice.
    """
    devices = target.jax_devices // target.slices
    domain = target.device.domain_chips * target.device.jax_devices_per_chip
    experts = experts_of(model)
    made = []
    for tensor in _sizes("tensor", devices, min(_WIDEST_TENSOR, domain), fixed):
        for expert in _sizes("expert", devices // tensor, experts, fixed):
            left = devices // tensor // expert
            for fsdp in _sizes("fsdp", left, left, fixed):
                data = left // fsdp
                if str(data) != fixed.get("data", str(data)):
                    continue
                shape = zip(AXES, (data, fsdp, expert, tensor), strict=True)
                made.append(tuple((name, size) for name, size in shape if size > 1) or (("fsdp", 1),))
    if not made:
        asked = ", ".join(f"{name}={size}" for name, size in fixed.items() if name in AXES)
        message = (
            f"--fix {asked}: no such mesh fills the {devices} devices of {target.selector}; sizes must divide them"
        )
        raise UsageError(message)
    return made


def policies(fixed: Mapping[str, str]) -> list[str]:
    """Returns the catalogued policies of rematerialisation by name."""
    if POLICY in fixed:
        return [fixed[POLICY]]
    return sorted(state.name for state in host().components("remat") if state.state.usable)


def splits(rows: int, fixed: Mapping[str, str]) -> list[int]:
    """Returns the numbers of microbatches that rows divide into."""
    if MICROBATCHES in fixed:
        return [int(fixed[MICROBATCHES])]
    return [count for count in _MICROBATCHES if rows % count == 0]


def _sizes(name: str, devices: int, most: int, fixed: Mapping[str, str]) -> Iterator[int]:
    for size in range(1, devices + 1):
        wanted = fixed.get(name)
        if devices % size == 0 and (str(size) == wanted if wanted else size <= most):
            yield size


def experts_of(model: Module) -> int:
    """Returns the most experts that a parameter of the model has; 1 without any."""
    specs: dict[str, Any] = flatten_paths(param_specs(model))
    sizes = [
        spec.shape[spec.axes.index("experts")]
        for spec in specs.values()
        if isinstance(spec, ParamSpec) and "experts" in spec.axes
    ]
    return max(sizes, default=1)
