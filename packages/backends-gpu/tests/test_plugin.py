"""The backend passes the kit that strangers' backends pass, and its kernels stay on their platform."""

import subprocess
import sys

from kanawa.testing.backend import BackendConformance


class TestBackend(BackendConformance):
    distribution = "kanawa-backends-gpu"


def test_its_kernels_import_nothing_of_tpus():
    program = """
import importlib, sys
from importlib.metadata import entry_points
for entry in entry_points(group="kanawa.kernels"):
    if ".gpu." in entry.name and entry.dist.name == "kanawa-backends-gpu":
        importlib.import_module(entry.module)
assert "kanawa_backends_gpu.kernels.attention.pallas" in sys.modules
of_tpus = [name for name in sys.modules if {"tpu", "libtpu"} & set(name.replace("_", ".").split("."))]
# JAX has a small module for cloud TPUs that it always imports.
print(*[name for name in of_tpus if "pallas" in name or not name.startswith("jax")])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []
