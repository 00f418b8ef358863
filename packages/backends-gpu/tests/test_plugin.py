"""The plugin module stays light, and the host finds what it contributes."""

import subprocess
import sys

from sashimono.plugins import component, host
from sashimono.plugins.devices import device_specs

PROGRAM = """
import sys
import sashimono_backends_gpu.plugin as plugin
plugin.sashimono_device_specs(), plugin.sashimono_mesh_rules()
heavy = {"jax", "jaxlib", "numpy"} & set(sys.modules)
assert not heavy, heavy
"""


def test_figures_and_rules_load_no_jax():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_every_component_loads():
    mine = "sashimono-backends-gpu"
    states = [state for state in host().components() if state.distribution == mine]
    for state in states:
        component(state.kind, state.name)


def test_doctor_says_something_useful():
    found = dict(host().collect("sashimono_doctor"))
    findings = found["sashimono-backends-gpu:backends-gpu"]
    assert findings
    assert all(finding.fix for finding in findings if finding.level != "ok")


def test_rules_name_known_devices():
    known = device_specs()
    for _, rules in host().collect("sashimono_mesh_rules"):
        for rule in rules:
            assert set(rule.devices) <= set(known), rule.name
