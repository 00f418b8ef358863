"""Freed memory is kept on a CPU, and nowhere else."""

import subprocess
import sys

import pytest
from kanawa_backends_cpu.process import keep_freed_memory

#: Allocates and frees 256 MiB a few times; the pages of the first time serve all others.
PROBE = """
import ctypes, resource
# Else a machine that gives memory in pages of 2 MiB unasked has nothing to count; 41 is PR_SET_THP_DISABLE.
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)
from kanawa_backends_cpu.process import keep_freed_memory
print(keep_freed_memory(in_threads=IN_THREADS))
def once():
    block = bytearray(2**28)
    block[::4096] = b"x" * len(block[::4096])
once()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
once()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def probed(in_threads=False, **environment):
    """Returns (kept, page faults of the second time) in a process of its own: the setting can't be undone."""
    probe = PROBE.replace("IN_THREADS", str(in_threads))
    run = subprocess.run(
        [sys.executable, "-c", probe], env={"PATH": "", **environment}, capture_output=True, text=True, check=True
    )
    kept, faults = run.stdout.split()
    return kept == "True", int(faults)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own")
def test_memory_of_one_step_serves_the_next():
    kept, faults = probed(JAX_PLATFORMS="cpu")
    given_back, many = probed(JAX_PLATFORMS="cuda,cpu")
    assert (kept, given_back) == (True, False)
    assert faults < 1000 < 30_000 < many
    # A server's main thread keeps its memory too.
    kept, faults = probed(in_threads=True, JAX_PLATFORMS="cpu")
    assert kept
    assert faults < 1000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JAX_PLATFORMS", "tpu"),
        ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
        ("MALLOC_ARENA_MAX", "4"),
    ],
)
def test_who_has_other_plans_is_left_alone(monkeypatch, name, value):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv(name, value)
    assert keep_freed_memory() is False


def test_another_libc_is_left_alone(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False
