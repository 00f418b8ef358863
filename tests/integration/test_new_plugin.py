"""`kanawa new plugin` writes packages that build, install, pass their own tests and are listed."""

import json
import os
import subprocess
import sys

import pytest

KINDS = {
    **{"layer": "layers", "kernel": "kernels", "service": "services", "experiment": "experiments"},
    **{"cache": "caches", "model": "models", "loss": "layers", "corpus": "corpora"},
}
#: Those with a plugin module, and a command line that shows its work.
MODULES = {"command": ("{name}", "kernels"), "backend": ("plan", "tiny-lm", "--on", "stranger_backend-8", "--quick")}


#: The others are much like these, and are built each night.
ALWAYS = {"layer", "service", "command"}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k in ALWAYS else pytest.mark.nightly) for k in (*KINDS, *MODULES)]
)
def test_what_is_generated_works(installation, build, kind, tmp_path):
    name = f"stranger-{kind}"
    done = installation.run("new", "plugin", name, "--kind", kind, "--into", str(tmp_path))
    assert done.returncode == 0, done.stderr
    project = tmp_path / name
    installation.install(build(project, tmp_path / "wheel"))
    states = installation.json("list", KINDS[kind]) if kind in KINDS else installation.json("plugins")
    offered = {state["distribution"]: state for state in states}
    assert offered[name]["state"] in ("available", "loaded")
    if kind in MODULES:
        done = installation.run(*(argument.format(name=name) for argument in MODULES[kind]))
        assert done.returncode == 0, done.stderr
    environment = {**os.environ, "PYTHONPATH": str(installation.plugins)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(project)]
    tested = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=project, check=False)
    assert tested.returncode == 0, tested.stdout
    assert " passed" in tested.stdout
    # Without components, a topology or compiler options there is nothing for their checks.
    assert ("skipped" in tested.stdout) == (kind in MODULES)
    if kind == "service":
        done = installation.run("train", "tiny-lm", "--modify", f"service:name={name}", "--run", "run", "--steps", "2")
        assert done.returncode == 0, done.stderr
        losses = [e["loss"] for e in installation.events("run") if e["event"] == "step"]
        assert json.loads((installation.folder / "run" / "best_loss.json").read_text()) == {"loss": min(losses)}
