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


#: XLA keeps one pool for programs and one for their parts: counted are the threads of both.
THREADS = """
import os
from kanawa_backends_cpu.process import prepare_process
prepare_process("train")
import jax
jax.devices()
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted by /proc")
def test_devices_of_one_process_have_threads_to_compute_while_others_wait_in_a_collective():
    def threads(**environment):
        variables = {"PATH": "", "JAX_PLATFORMS": "cpu", **environment}
        run = subprocess.run([sys.executable, "-c", THREADS], env=variables, capture_output=True, text=True, check=True)
        return int(run.stdout)

    eight = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    assert threads(**eight) >= threads(**eight, NPROC="8") + 24
    assert threads() < 24 + threads(NPROC="2")
