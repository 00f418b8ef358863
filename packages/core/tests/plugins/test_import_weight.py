"""What importing costs: sets of loaded modules in a fresh process, not times."""

import subprocess
import sys

import pytest


def third_party_after(code):
    script = (
        f"import sys; before = set(sys.modules); {code}; "
        "new = {m.split('.')[0] for m in set(sys.modules) - before}; "
        "print(*sorted(new - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import kanawa", set()),
        ("import kanawa.plugins", set()),
        ("from kanawa.plugins import DeviceSpec, MeshRule, Command, host", set()),
        ("from kanawa.plugins import hookimpl, Component, Finding", {"pluggy"}),
        ("import kanawa.cli.main", set()),
    ],
)
def test_imports_nothing_more_than(code, allowed):
    ours = {m for m in third_party_after(code) if not m.startswith("kanawa")}
    assert ours <= allowed


@pytest.mark.parametrize(
    "code",
    [
        "import kanawa; kanawa.host().components()",
        "from kanawa.plugins.devices import device_specs; device_specs()",
        "import kanawa.composition.target as t; t.parse_target('cpu-8')",
        "from kanawa.cli.main import main; main(['list'])",
        "from kanawa.cli.main import main; main(['doctor'])",
    ],
)
def test_does_not_import_jax(code):
    assert not {"jax", "jaxlib", "numpy"} & third_party_after(code)
