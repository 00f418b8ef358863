"""What importing loads, measured in fresh interpreters: sets of modules, never times."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE_FOLDERS = [str(path) for path in sorted((ROOT / "packages").glob("*/src"))]
PLUGIN_MODULES = sorted(
    ".".join(path.relative_to(path.parents[1]).with_suffix("").parts)
    for path in (ROOT / "packages").glob("*/src/*/plugin.py")
)
OURS = {"kanawa", *(module.split(".")[0] for module in PLUGIN_MODULES)}

PROBE = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
before = set(sys.modules)
exec(sys.argv[2])
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded(statement: str) -> set[str]:
    """Returns the modules that a statement loads beyond those of a bare interpreter."""
    command = [sys.executable, "-I", "-c", PROBE, json.dumps(SOURCE_FOLDERS), statement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Quiet: a machine without the hardware has nothing to complain of.
    assert done.stderr == ""
    return set(json.loads(done.stdout))


def third_party(modules: set[str]) -> set[str]:
    tops = {module.split(".")[0] for module in modules}
    return tops - set(sys.stdlib_module_names) - OURS


def test_importing_kanawa_loads_no_third_party_module():
    modules = loaded("import kanawa")
    assert "kanawa" in modules
    assert third_party(modules) == set()


def test_config_and_plugins_load_no_jax():
    modules = loaded("import kanawa.config, kanawa.plugins; kanawa.plugins.host")
    assert not third_party(modules) & {"jax", "jaxlib", "numpy", "jaxtyping"}


def test_the_command_line_starts_without_jax():
    modules = loaded("import kanawa.cli.main")
    assert not third_party(modules) & {"jax", "jaxlib", "numpy", "optax", "orbax", "grain", "rich"}


@pytest.mark.parametrize("module", PLUGIN_MODULES)
def test_a_plugin_module_imports_the_host_and_the_standard_library(module):
    package = module.split(".")[0]
    modules = loaded(f"import {module}")
    assert third_party(modules) <= {"pluggy"}
    ours = {name for name in modules if name.split(".")[0] in OURS}
    foreign = {n for n in ours if n.split(".")[0] not in ("kanawa", package)}
    assert not foreign
    core = {name for name in ours if name.startswith("kanawa.")}
    assert all(n.split(".")[1] in ("plugins", "errors", "status", "_version") for n in core), sorted(core)


VERBS = """
import argparse, {module} as plugin
for hook in ("kanawa_commands", "kanawa_command_options"):
    for offered in getattr(plugin, hook, list)():
        offered.configure(argparse.ArgumentParser())
"""


@pytest.mark.parametrize("module", PLUGIN_MODULES)
def test_declaring_the_verbs_loads_no_jax(module):
    """`kanawa --help`, completion and every verb of a plugin declare all of them."""
    modules = loaded(VERBS.format(module=module))
    assert not third_party(modules) & {"jax", "jaxlib", "numpy", "optax", "orbax", "grain", "rich"}


def test_the_probe_sees_what_it_should():
    assert "json.tool" in loaded("import json.tool")
    assert third_party({"numpy.linalg", "os.path", "kanawa.config"}) == {"numpy"}
