"""Conformance of a backend: device figures, mesh rules, topologies and compiler options that hang together."""

import dataclasses
import math
from typing import Any

import pytest

from kanawa.composition.mesh_rules import find_rule
from kanawa.composition.target import Target, parse_target
from kanawa.errors import TargetError
from kanawa.plugins import DeviceSpec, host
from kanawa.plugins.devices import device_specs
from kanawa.plugins.discovery import normalise
from kanawa.testing.plugin import PluginConformance, imported_by

#: Parameters of the models that every mesh rule set must have an answer for.
MODEL_SIZES = (10**8, 10**9, 7 * 10**9, 70 * 10**9, 405 * 10**9)
PURPOSES = ("train", "prefill", "decode")
_DTYPES = {"float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"}

MeshRow = tuple[dict[str, int], dict[str, int], str]


def mesh_row(selector: str, num_parameters: float) -> MeshRow:
    """Returns (axes in a slice, axes between slices, remat policy) for a target and a model, checked to fit."""
    target = parse_target(selector)
    rule = find_rule(target, int(num_parameters))
    assert rule is not None, f"no mesh rule for {selector} and {num_parameters:,} parameters"
    mesh, between = dict(rule.mesh), dict(rule.dcn)
    fixed = math.prod(size for size in mesh.values() if size != -1)
    in_slice = target.jax_devices // target.slices
    assert in_slice % fixed == 0, f"{rule.name}: {mesh} doesn't divide the {in_slice} devices of {selector}"
    assert -1 in mesh.values() or fixed == in_slice, f"{rule.name}: {mesh} leaves devices of {selector} idle"
    assert math.prod(between.values()) == target.slices, f"{rule.name}: {between} isn't {target.slices} slices"
    policies = [values["policy"] for name, values in rule.modifiers if name == "remat"]
    return mesh, between, "".join(policies)


class BackendConformance(PluginConformance):
    """Subclasses set the distribution. Needs no device: what only a compiler knows is skipped without one.

    `unsupported` may hold "topology" (no compiler is public) and "compiler options", with a reason each.
    """

    # --- what the kit needs ----------------------------------------------------------------------------------

    def contributed(self, hook: str, **arguments: Any) -> list[Any]:
        """Returns what this distribution's plugins answer to a hook."""
        prefix = f"{normalise(self.distribution)}:"
        return [result for plugin, result in host().collect(hook, **arguments) if plugin.startswith(prefix)]

    def devices(self) -> list[DeviceSpec]:
        """Returns the backend's device specs."""
        described = [spec for specs in self.contributed("kanawa_device_specs") for spec in specs]
        assert described, f"{self.distribution} describes no device"
        return described

    def selectors(self, device: DeviceSpec) -> list[str]:
        """Returns selectors of every size of slice the device is sold in; powers of two hosts if any is."""
        chips = list(device.topologies) or [1, *(device.chips_per_host * 2**i for i in range(8))]
        return [f"{device.name}-{count * device.cores_per_unit}" for count in chips]

    # --- the checks ------------------------------------------------------------------------------------------

    def test_figures_and_rules_load_no_jax(self) -> None:
        calls = "plugin.kanawa_device_specs(), plugin.kanawa_mesh_rules()"
        for state in self.plugin_states():
            assert not imported_by(state.value, calls), state.value

    def test_figures_hang_together(self) -> None:
        for device in self.devices():
            if device.divisible:
                continue  # Figures of the machine that runs the test, whatever it is.
            peaks = device.peak_flops
            assert not {d for d in peaks if d not in _DTYPES and not d.startswith("int")}, device.name
            assert peaks["float32"] < peaks["bfloat16"], device.name
            assert device.link_bandwidth > device.network_bandwidth, device.name
            # Reading all of its memory takes a chip tens of milliseconds: catches a wrong power of ten.
            assert 10 < device.memory_bandwidth / device.memory_bytes < 100, device.name
            assert device.clock_hz is None or 5e8 < device.clock_hz < 5e9, f"{device.name}: {device.clock_hz} Hz"
            assert device.device_kinds, f"{device.name}: JAX's device_kind can't be matched"

    def test_topologies_match_their_sizes(self) -> None:
        for device in self.devices():
            for chips, topology in device.topologies.items():
                sides = [int(side) for side in topology.split("x")]
                assert math.prod(sides) == chips <= device.domain_chips, (device.name, topology)

    def test_a_device_kind_belongs_to_one_chip(self) -> None:
        owners: dict[str, DeviceSpec] = {}
        for device in self.devices():
            for kind in device.device_kinds:
                other = owners.setdefault(kind, device)
                assert other.peak_flops == device.peak_flops, f"{kind}: {other.name} or {device.name}?"

    def test_every_size_is_read_as_sold(self) -> None:
        for device in self.devices():
            for selector in self.selectors(device):
                target = parse_target(selector)
                assert target.jax_devices == target.chips * device.jax_devices_per_chip, selector
                assert target.topology == device.topologies.get(target.chips, ""), selector

    def test_mesh_rules_have_an_answer_for_every_size(self) -> None:
        for device in self.devices():
            for selector in self.selectors(device):
                if parse_target(selector).jax_devices > 1:
                    for size in MODEL_SIZES:
                        mesh_row(selector, size)

    def test_rules_name_known_devices(self) -> None:
        known = set(device_specs())
        rules = [rule for offered in self.contributed("kanawa_mesh_rules") for rule in offered]
        assert rules, f"{self.distribution} has no mesh rules"
        for rule in rules:
            assert set(rule.devices) <= known, rule.name

    def test_compiler_options_depend_on_the_device_alone(self) -> None:
        device = self._foreign_target().device
        assert not any(self.contributed("kanawa_compiler_options", device=device, purpose="train"))
        for device in self.devices():
            for purpose in PURPOSES:
                first = self._options(device, purpose)
                assert first == self._options(device, purpose)
                # Callers lay their own options over these.
                first["changed by the caller"] = True
                assert first != self._options(device, purpose), "the same dictionary is handed out twice"

    def test_other_targets_get_no_topology(self) -> None:
        assert self.contributed("kanawa_topology", target=self._foreign_target()) == []

    def test_a_topology_has_the_targets_devices_or_a_reason(self) -> None:
        self.skip_unless("topology")
        answers = [(t, self._topology(t)) for t in (parse_target(self.selectors(d)[0]) for d in self.devices())]
        assert any(answer for _, answer in answers), "no device has a compiler: add unsupported['topology']"
        for target, answer in answers:
            if isinstance(answer, str):
                assert "pip install" in answer, answer
            elif answer is not None:
                assert len(answer) == target.jax_devices, target.selector

    def test_options_are_accepted_or_refused_with_a_reason(self) -> None:
        self.skip_unless("topology")
        self.skip_unless("compiler options")
        from kanawa.composition.compiler_options import checked, empty_program

        target = parse_target(self.selectors(self.devices()[0])[0])
        answered = self._topology(target)
        if answered is None or isinstance(answered, str):
            pytest.skip(answered or "no compiler for this target")
        for purpose in PURPOSES:
            asked = {**self._options(target.device, purpose), "xla_no_such_option": True}
            answer = checked(asked, empty_program(answered).compile)
            assert {*answer.accepted, *answer.refused} == set(asked)
            assert "xla_no_such_option" in answer.refused
            assert all(len(reason) > 10 for reason in answer.refused.values()), answer.refused

    def test_doctor_says_what_to_do(self) -> None:
        findings = [f for reported in self.contributed("kanawa_doctor", options={}) for f in reported]
        assert findings, f"{self.distribution} has nothing to say to `kanawa doctor`"
        assert all(finding.fix for finding in findings if finding.level != "ok")

    def _foreign_target(self) -> Target:
        """Returns a target of a platform that no backend has."""
        device = dataclasses.replace(self.devices()[0], name="elsewhere", platform="elsewhere")
        return Target("elsewhere", device, chips=1, jax_devices=1, hosts=1)

    def _options(self, device: DeviceSpec, purpose: str) -> dict[str, Any]:
        options: dict[str, Any]
        (options,) = self.contributed("kanawa_compiler_options", device=device, purpose=purpose)
        return options

    def _topology(self, target: Target) -> list[Any] | str | None:
        """Returns the compile-only devices, the error that says what is missing, or None without a public compiler."""
        try:
            offered = self.contributed("kanawa_topology", target=target)
        except TargetError as missing:
            return str(missing)
        return offered[0] if offered else None
