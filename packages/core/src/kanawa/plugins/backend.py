"""The hooks of a backend, once for all: a backend package says where its parts lie, and nothing of them is copied."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from glob import glob
from typing import Any

from kanawa.errors import TargetError
from kanawa.plugins.catalog import load_value
from kanawa.plugins.records import Calibration, DeviceSpec, Finding, MeshRule, ProgramTraits, Purpose
from kanawa.plugins.schedules import KernelSchedule, RecordedCycles, ScheduleRequest
from kanawa.plugins.specs import hookimpl


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backend:
    """A plugin object for devices of one platform; each part is "module:object", imported when a hook asks for it.

    Attributes:
        platform: whose devices the options and topologies are for.
        devices: a sequence of DeviceSpecs.
        mesh_rules: a sequence of MeshRules.
        findings: a function that returns a preflight's findings.
        signs: file patterns, one of which the operating system has where the hardware is.
        compiler_options: a function (device, purpose) -> options; empty where the compiler takes none from XLA.
        program_traits: a function (device, purpose, parameters, devices) -> ProgramTraits; empty where the compiler
            needs nothing of a program.
        process_environment: a function (device, root, processes, index) -> variables of a process of a gang; empty
            where its runtime needs none.
        prepare_process: a function (purpose) that prepares a process before JAX starts; empty where none is needed.
        compile_cache_key: a function that returns what of this machine compiled programs depend on; empty for nothing.
        topology: a function (target) -> compile-only devices; empty where no compiler is public.
        missing_compiler: a function that returns the distributions the compiler lacks here.
        calibrations: a sequence of Calibrations; empty where no published step was fitted.
        kernel_schedules: a function (ScheduleRequest) -> KernelSchedules; empty where no compiler reports them.
        recorded_cycles: a function that returns RecordedCycles; empty where none are known.
        without_compiler: devices by name that `topology` isn't for: their compiler needs the hardware.
        install: what `pip install` makes good what is missing, such as "my-backend[compile]".
    """

    platform: str
    devices: str
    mesh_rules: str
    findings: str
    signs: tuple[str, ...] = ()
    compiler_options: str = ""
    program_traits: str = ""
    process_environment: str = ""
    topology: str = ""
    prepare_process: str = ""
    compile_cache_key: str = ""
    missing_compiler: str = ""
    calibrations: str = ""
    kernel_schedules: str = ""
    recorded_cycles: str = ""
    without_compiler: tuple[str, ...] = ()
    install: str = ""

    @hookimpl
    def kanawa_device_specs(self) -> Sequence[DeviceSpec]:
        """Returns the backend's devices."""
        specs: Sequence[DeviceSpec] = load_value(self.devices)
        return specs

    @hookimpl
    def kanawa_mesh_rules(self) -> Sequence[MeshRule]:
        """Returns the backend's mesh rules."""
        rules: Sequence[MeshRule] = load_value(self.mesh_rules)
        return rules

    @hookimpl
    def kanawa_calibrations(self) -> Sequence[Calibration]:
        """Returns what the backend's devices reach."""
        fitted: Sequence[Calibration] = load_value(self.calibrations) if self.calibrations else ()
        return fitted

    @hookimpl
    def kanawa_recorded_cycles(self) -> Sequence[RecordedCycles]:
        """Returns what the backend's kernels take by its compiler's schedules."""
        rows: Sequence[RecordedCycles] = load_value(self.recorded_cycles)() if self.recorded_cycles else ()
        return rows

    @hookimpl
    def kanawa_compiler_options(self, device: DeviceSpec, purpose: Purpose) -> dict[str, Any] | None:
        """Returns XLA options for one of the platform's devices; None for any other."""
        if device.platform != self.platform:
            return None
        return dict(load_value(self.compiler_options)(device, purpose)) if self.compiler_options else {}

    @hookimpl
    def kanawa_program_traits(
        self, device: DeviceSpec, purpose: Purpose, parameters: int, devices: int
    ) -> ProgramTraits | None:
        """Returns what the compiler needs of a program for the platform's devices; None for any other."""
        if device.platform != self.platform or not self.program_traits:
            return None
        traits: ProgramTraits = load_value(self.program_traits)(device, purpose, parameters, devices)
        return traits

    @hookimpl
    def kanawa_process_environment(
        self, device: DeviceSpec, root: str, processes: int, index: int
    ) -> dict[str, str] | None:
        """Returns variables for a process on one of the platform's devices; None for any other."""
        if device.platform != self.platform or not self.process_environment:
            return None
        return dict(load_value(self.process_environment)(device, root, processes, index))

    @hookimpl
    def kanawa_process_started(self, purpose: str) -> None:
        """Prepares the process, if the backend has anything to prepare."""
        if self.prepare_process:
            load_value(self.prepare_process)(purpose)

    @hookimpl
    def kanawa_compile_cache_key(self) -> Sequence[str]:
        """Returns what of this machine the backend's compiled programs depend on."""
        parts: Sequence[str] = load_value(self.compile_cache_key)() if self.compile_cache_key else ()
        return parts

    @hookimpl
    def kanawa_topology(self, target: Any) -> list[Any] | None:
        """Returns compile-only devices for one of the platform's targets; None for any other, or without a compiler.

        Raises TargetError, saying what to install, where the compiler isn't there.
        """
        if not self._compiles_for(target.device) or not self.topology:
            return None
        self._require_compiler(target)
        return list(load_value(self.topology)(target))

    # The spec is kanawa-kernel-tools': without that package nothing calls it.
    @hookimpl(optionalhook=True)
    def kanawa_kernel_schedules(self, request: ScheduleRequest) -> Sequence[KernelSchedule] | None:
        """Returns what the platform's compiler makes of a kernel; None for any other platform, or without a compiler.

        Raises TargetError, saying what to install, where the compiler isn't there.
        """
        if not self._compiles_for(request.target.device) or not self.kernel_schedules:
            return None
        self._require_compiler(request.target)
        schedules: Sequence[KernelSchedule] = load_value(self.kernel_schedules)(request)
        return schedules

    @hookimpl
    def kanawa_doctor(self) -> Sequence[Finding]:
        """Returns what the backend's preflight found."""
        findings: Sequence[Finding] = load_value(self.findings)()
        return [*findings, *self._left_out(os.environ.get("JAX_PLATFORMS", ""))]

    def _left_out(self, platforms: str) -> list[Finding]:
        """Returns a warning where the hardware is here and JAX_PLATFORMS leaves it out."""
        here = next((path for pattern in self.signs for path in sorted(glob(pattern))), "")
        names = {self.platform, *(spec.lowered_as for spec in self.kanawa_device_specs())}
        if not here or not platforms or names & {*platforms.split(",")}:
            return []
        message = f"{here} is here but JAX_PLATFORMS={platforms} leaves it out"
        meaning = "runs started from here don't use it"
        return [Finding("warning", self.platform, message, "unset JAX_PLATFORMS", meaning)]

    def _compiles_for(self, device: DeviceSpec) -> bool:
        return device.platform == self.platform and device.name not in self.without_compiler

    def _require_compiler(self, target: Any) -> None:
        missing = load_value(self.missing_compiler)() if self.missing_compiler else ()
        if missing:
            message = (
                f"target {target.selector} needs the {self.platform.upper()} compiler; missing: {', '.join(missing)}; "
                f'run: pip install "{self.install}"'
            )
            raise TargetError(message)
