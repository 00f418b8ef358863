"""The plain records that plugins hand to the host. Nothing here imports JAX or the config."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import argparse

LEVELS: tuple[str, ...] = ("ok", "warning", "error")
#: What a program is compiled for.
Purpose = Literal["train", "prefill", "decode"]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """One accelerator's public figures, per chip; `source` cites where they come from.

    FLOP/s are dense, by dtype name; bandwidths are bytes per second: `memory_` to the chip's own
    memory, `link_` to its neighbours inside a fast domain, `network_` between domains.

    Attributes:
        name: what a target selector starts with.
        platform: the word in kernel names and mesh rules; any backend may bring its own.
        lowered_as: the name under which JAX lowers for the platform, where it is another one.
        device_kinds: the `device_kind` strings with which JAX reports this chip.
        counted: what the number in a selector counts, "chips" or "cores".
        topologies: chips to topology, such as {256: "4x8x8"}; empty when any count is possible.
        domain_chips: the most chips in one fast domain (a slice of a pod, the devices of one switch).
        torus_dimensions: of a fast domain whose links form a torus, how many; 0 where any pair is equally near.
        direct_links: of a fast domain whose devices are joined pairwise, how many links each has, over which
            `link_bandwidth` is spread; 0 where a switch joins them.
        link_name: what the links inside a domain are called; `network_name` those between domains.
        host_bandwidth: bytes a second that a chip sends to its host's memory, and as many back at once; of PCIe 4.0 x16
            where nothing is published.
        link_latency_seconds: until the first byte of a collective arrives, whatever its size.
        clock_hz: cycles a second in which the platform's compiler counts its estimates; None if it makes none.
        exact_float32: whether float32 matmuls run in float32 by default, not in passes of a narrower dtype.
        compiler: the distribution that has its compiler; empty where none is public, or where it comes with JAX.
        model: which model it is, where its kind doesn't say so, such as a processor's name.
        visible_devices: the variable that lists the devices which a process may use; empty where there is none.
        unfused: operations of which the platform has no fused kernel; `require_fused` leaves them alone.
        divisible: whether the figures are those of one machine, which the devices of a selector divide among them.
    """

    name: str
    platform: str
    lowered_as: str = ""
    family: str = ""
    device_kinds: tuple[str, ...] = ()
    peak_flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    memory_bytes: int
    memory_bandwidth: float
    link_bandwidth: float
    network_bandwidth: float
    chips_per_host: int
    jax_devices_per_chip: int = 1
    counted: Literal["chips", "cores"] = "chips"
    cores_per_chip: int = 1
    topologies: Mapping[int, str] = field(default_factory=dict, hash=False)
    domain_chips: int = 1
    torus_dimensions: int = 0
    direct_links: int = 0
    link_name: str = "link"
    network_name: str = "network"
    host_bandwidth: float = 32e9
    link_latency_seconds: float = 5e-6
    clock_hz: float | None = None
    exact_float32: bool = False
    compiler: str = ""
    model: str = ""
    visible_devices: str = ""
    unfused: tuple[str, ...] = ()
    divisible: bool = False
    source: str

    def __post_init__(self) -> None:
        """Refuses figures that can't be; raises ValueError."""
        _require(_is_platform(self.platform), f"{self.name}: platform {self.platform!r} is no short word")
        _require(self.counted in ("chips", "cores"), f"{self.name}: counted {self.counted!r}")
        for count in ("chips_per_host", "jax_devices_per_chip", "cores_per_chip", "domain_chips"):
            _require(getattr(self, count) >= 1, f"{self.name}: {count} must be at least 1")
        _require(0 <= self.torus_dimensions <= 3, f"{self.name}: torus_dimensions must be 0 to 3")
        _require(self.clock_hz is None or self.clock_hz > 0, f"{self.name}: clock_hz must be positive, or None")
        _require(bool(self.source), f"{self.name}: source must cite where the figures come from")

    def chips_in_domain(self, chips: int) -> int:
        """Returns how many of a slice's chips share a fast domain: as many as it holds, in domains of one size.

        256 chips in domains of 72 are four domains of 64, as schedulers place them.
        """
        hosts = max(1, chips // self.chips_per_host)
        needed = -(-chips // self.domain_chips)
        return chips // next((n for n in range(needed, hosts + 1) if hosts % n == 0), needed)

    @property
    def cores_per_unit(self) -> int:
        """How many of what a selector's number counts make one chip."""
        return self.cores_per_chip if self.counted == "cores" else 1

    def divided(self, count: int) -> DeviceSpec:
        """Returns one of the `count` equal devices that a divisible device's machine is divided into."""
        return replace(
            self,
            peak_flops={dtype: flops / count for dtype, flops in self.peak_flops.items()},
            memory_bytes=self.memory_bytes // count,
            memory_bandwidth=self.memory_bandwidth / count,
            link_bandwidth=self.link_bandwidth / count,
            chips_per_host=count,
            domain_chips=count,
        )


@dataclass(frozen=True)
class ProgramTraits:
    """What a target's compiler needs of a program beside options: how it is written, not what it computes.

    Attributes:
        materialized_inputs: training writes to memory what enters a projection, and the gradients around it, where the
            compiler would compute them again for every tile of the matmul (kanawa.arrays.materialize).
        row_major_stream: training stores the residual stream row by row, where the compiler would choose a layout for
            one matmul and copy what it saved of each layer for all others.
        unrolled_layers: a loop over at most so many layers is written out, where the compiler would copy what a loop
            saves of each layer into one large array and out again.
        recomputes_shared: the compiler computes a value again in each of its readers, and drops barriers; costly values
            are computed in a branch, which it doesn't fuse.
        converts_whole_arrays: where a loop reads parts of an array of 16-bit floats, the compiler converts all of it to
            float32 before the loop; caches are stored as integers of the same bits.
        reads_filled_pages: attention over pages reads those in use alone, so that one width of page tables serves all.
    """

    materialized_inputs: bool = False
    row_major_stream: bool = False
    unrolled_layers: int = 0
    recomputes_shared: bool = False
    converts_whole_arrays: bool = False
    reads_filled_pages: bool = False


@dataclass(frozen=True, kw_only=True)
class PublishedStep:
    """How long others' training step of a workload took on a target: `seconds` for one batch; `source` cites it.

    It holds for the experiment without modifiers or overrides; other plans aren't compared with it.
    """

    experiment: str
    target: str
    seconds: float
    source: str

    def __post_init__(self) -> None:
        """Refuses a time that can't be, or one of nowhere; raises ValueError."""
        _require(self.seconds > 0, f"{self.experiment} on {self.target}: seconds must be positive")
        _require(bool(self.source), f"{self.experiment} on {self.target}: source must cite where it is published")


@dataclass(frozen=True)
class FittedStep:
    """A published step on which a calibration was fitted, and what its plan says.

    Attributes:
        workload: what was trained and how it was spread, in words.
        seconds: as published; `rounding_seconds` is half a unit of its last digit.
        planned_seconds: by the calibration; `held_out_seconds` by one that was fitted without this step.
    """

    workload: str
    target: str
    seconds: float
    planned_seconds: float
    held_out_seconds: float
    source: str
    rounding_seconds: float = 0.05

    def __post_init__(self) -> None:
        """Refuses a time that can't be; raises ValueError."""
        for name in ("seconds", "planned_seconds", "held_out_seconds"):
            _require(getattr(self, name) > 0, f"{self.workload} on {self.target}: {name} must be positive")


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What programs of one compiler reach on some kinds of device, of what the figures and the compiler promise.

    Without fitted steps the figures themselves count, which no program reaches.

    Attributes:
        compiler: the distribution and version whose programs were fitted, such as "compiler 0.0.52".
        devices: DeviceSpec names.
        estimate_factor: seconds that a second of the compiler's own estimate takes.
        compute_share: of peak FLOP/s, for work of which the compiler makes no estimate.
        kernel_shares: the same for fused kernels of an operation, by its name, such as {"grouped_matmul": 0.4}.
        memory_share, link_share, network_share: of the bandwidths.
        hidden_cost: what a second of communication behind compute costs that compute, in seconds.
        launch_seconds: until a kernel begins, where the compiler makes no estimates.
        waited_share: of a collective that compute waits for, what sending it in parts beside the matmul doesn't hide.
        narrow_shares: what matmuls of a dtype reach of `compute_share`, by how its name begins.
        fused_share: of the bytes of passes without matmuls, what no kernel beside them moves anyway.
        quantising_share: the same again of passes that bring operands into fewer bits.
        kept_passes: passes over memory that an activation saved for the backward pass costs beyond a write and a read:
            "heads" where its heads are a dimension, which kernels lay out otherwise than a stack of layers does,
            "heads_offloaded" where that goes to the host's memory, and "offloaded" for any other that does.
        network_latency_seconds: of one hop of a sum between domains, which ends a loop's iteration.
        row_cycles: of the clock, for 128 elements of a row that a core gathers or adds to a table, one after another.
        row_table_bytes: of a table above which other cores do that at the memory's bandwidth; 0 without such cores.
        traced: the same of traced programs by DeviceSpec name, where those were fitted apart from compiled ones.
        interval: the least and the most that a step takes, as multiples of the planned time.
        steps: what it was fitted on; the held-in steps.
        uncalibrated: what none of those steps tests, such as "DCN".
    """

    compiler: str = ""
    devices: tuple[str, ...] = ()
    estimate_factor: float = 1.0
    compute_share: float = 1.0
    kernel_shares: Mapping[str, float] = field(default_factory=dict, hash=False)
    memory_share: float = 1.0
    link_share: float = 1.0
    network_share: float = 1.0
    hidden_cost: float = 0.0
    launch_seconds: float = 0.0
    waited_share: float = 1.0
    narrow_shares: Mapping[str, float] = field(default_factory=dict, hash=False)
    fused_share: float = 1.0
    quantising_share: float = 1.0
    kept_passes: Mapping[str, float] = field(default_factory=dict, hash=False)
    network_latency_seconds: float = 0.0
    row_cycles: float = 0.0
    row_table_bytes: float = 0.0
    traced: Mapping[str, Calibration] = field(default_factory=dict, hash=False)
    interval: tuple[float, float] = (1.0, 2.5)
    steps: tuple[FittedStep, ...] = ()
    uncalibrated: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuses shares that can't be; raises ValueError."""
        name = ", ".join(self.devices) or "calibration"
        for share in ("compute_share", "memory_share", "link_share", "network_share"):
            _require(0 < getattr(self, share) <= 1, f"{name}: {share} must be above 0 and at most 1")
        for operation, value in self.kernel_shares.items():
            _require(0 < value <= 1, f"{name}: the share of {operation} must be above 0 and at most 1")
        _require(self.estimate_factor > 0, f"{name}: estimate_factor must be positive")
        _require(self.hidden_cost >= 0 and self.launch_seconds >= 0, f"{name}: costs must not be negative")
        low, high = self.interval
        _require(0 < low <= high, f"{name}: the interval {self.interval} must be two positive numbers in order")


@dataclass(frozen=True, kw_only=True)
class MeshRule:
    """Which mesh and modifiers suit which hardware and model size: data, never code.

    Attributes:
        devices: DeviceSpec names it holds for; empty means any of the platform.
        min_parameters: smallest model (parameter count) it holds for; `max_parameters` the largest.
        slices: None for any number, "single" or "multi".
        mesh: mesh axis to size inside a slice; one may be -1, meaning whatever is left.
        dcn: mesh axis to size between slices; one may be -1, meaning the number of slices.
        modifiers: catalogued modifiers to apply, as (name, arguments).
        priority: the highest matching priority wins.
        distribution: whose plugin offers it, which the host fills in; empty for a rule of the user's own file.
        reason: why it was chosen, for origins; only what a placement made has one.
    """

    name: str
    platform: str
    devices: tuple[str, ...] = ()
    min_chips: int = 1
    max_chips: int | None = None
    min_parameters: int = 0
    max_parameters: int | None = None
    slices: Literal["single", "multi"] | None = None
    mesh: Mapping[str, int] = field(hash=False)
    dcn: Mapping[str, int] = field(default_factory=dict, hash=False)
    modifiers: tuple[tuple[str, Mapping[str, Any]], ...] = field(default=(), hash=False)
    priority: int = 0
    distribution: str = field(default="", compare=False)
    reason: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Refuses a mesh with two free axes or a size of zero; raises ValueError."""
        _require(_is_platform(self.platform), f"{self.name}: platform {self.platform!r} is no short word")
        for sizes in (list(self.mesh.values()), list(self.dcn.values())):
            _require(sizes.count(-1) <= 1, f"{self.name}: only one mesh axis may be -1")
            for size in sizes:
                good = size == -1 or size >= 1
                _require(good, f"{self.name}: mesh sizes must be positive, or -1 once")


@dataclass(frozen=True)
class Command:
    """A verb of the command line: `configure` adds arguments, `run` returns the exit code.

    Attributes:
        help: one line, for the list of verbs.
        example: command lines for the verb's own `--help`, such as "kanawa list layers".
    """

    name: str
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    example: str = ""


@dataclass(frozen=True)
class CommandOptions:
    """Options that a plugin adds to another package's verb.

    Attributes:
        verb: the verb's name.
        configure: adds the options to the verb's parser.
        run: returns the exit code; None where none of the options is used, so that the verb itself runs.
        example: further command lines for the verb's `--help`.
    """

    verb: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]
    example: str = ""


@dataclass(frozen=True)
class Component:
    """A catalogued object: `kind` is its group, `value` is "module:object", imported when named."""

    kind: str
    name: str
    value: str

    def __post_init__(self) -> None:
        """Refuses a kind, name or value that the catalog can't address; raises ValueError."""
        _require(valid_value(self.value), f"{self.name}: value {self.value!r} is not module:object")
        _require(":" not in self.name, f"{self.name}: a component name can't contain ':'")


@dataclass(frozen=True)
class Kind:
    """A kind of component, which is the entry-point group `kanawa.NAME`, declared by the package that uses it.

    Attributes:
        name: small letters, digits and underscores.
        help: one line, for `kanawa list`.
        subclass_of: "module:object" of the class that its components derive from; empty for none.
        instance_of: "module:object" of the class that its components are instances of; empty for none.
        makes: "module:object" of the class whose config its components return where they are functions; empty for none.
        home: the distribution that brings the first of them, to be named where none is installed; empty for none.
    """

    name: str
    help: str
    subclass_of: str = ""
    instance_of: str = ""
    makes: str = ""
    home: str = ""

    def __post_init__(self) -> None:
        """Refuses a name that can't be a group's, and a role that can't be imported; raises ValueError."""
        good = re.fullmatch(r"[a-z][a-z0-9_]*", self.name) is not None
        _require(good, f"kind {self.name!r}: expected small letters, digits and underscores")
        for role in filter(None, (self.subclass_of, self.instance_of, self.makes)):
            _require(valid_value(role), f"kind {self.name}: role {role!r} is not module:object")


@dataclass(frozen=True)
class Finding:
    """What a doctor check found: level ok, warning or error; `meaning` says what it leads to, `fix` what to do."""

    level: Literal["ok", "warning", "error"]
    subject: str
    message: str
    fix: str = ""
    meaning: str = ""

    def __post_init__(self) -> None:
        """Refuses an unknown level; raises ValueError."""
        _require(self.level in LEVELS, f"level {self.level!r} is not one of {LEVELS}")


def _is_platform(text: str) -> bool:
    return re.fullmatch(r"[a-z][a-z0-9_]*", text) is not None


def valid_value(value: str) -> bool:
    """Returns whether `value` has the form "package.module:object"."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", value) is not None
