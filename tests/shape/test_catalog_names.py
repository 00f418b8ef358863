"""One spelling for names that people type: small letters and digits, words joined by hyphens."""

import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).parents[2]
NAME = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")
#: `operation.platform.name`: the operation is the Python package that computes it.
KERNEL = re.compile(r"[a-z][a-z0-9_]*\.[a-z]+\.[a-z0-9]+(-[a-z0-9]+)*")
OPERATION = re.compile(r"[a-z][a-z0-9_]*")
#: Names that are another library's own.
FOREIGN = {"hf_families", "hf_activations"}


def test_names_in_the_catalog_have_hyphens():
    odd = []
    for file in [*ROOT.glob("packages/*/pyproject.toml"), *ROOT.glob("examples/**/pyproject.toml")]:
        groups = tomllib.loads(file.read_text())["project"].get("entry-points", {})
        for group, names in groups.items():
            kind = group.removeprefix("kanawa.")
            if group.startswith("kanawa.") and kind not in FOREIGN:
                form = {"kernels": KERNEL, "kernel_examples": OPERATION}.get(kind, NAME)
                odd += [f"{file.parent.name}: {group} {name}" for name in names if not form.fullmatch(name)]
    assert not odd, odd
