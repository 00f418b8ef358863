"""`kanawa kernels`: choices without a platform's libraries, fallbacks judged, kernels measured and used."""

import json
import os
import re

import pytest
from kanawa.cli.main import main
from kanawa.composition import environment

WORK = """
import dataclasses

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.contracts import Program, Workload
from kanawa.kernels import CAUSAL, Kernel, Verdict
from kanawa.kernels.attention import attention
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.plugins import DeviceSpec, hookimpl


class Attends(kn.Module):
    class Config(kn.Module.Config):
        pass

    def forward(self, q):
        return attention(q, q, q, mask=CAUSAL, scale=0.125)


class Work(Workload):
    class Config(Workload.Config):
        model: kn.Module.Config = Attends.Config()
        length: int = 16
        rows: int = 1

    def programs(self, environment):
        def step(q):
            return jax.grad(lambda q: (lambda out, outputs: (out.sum(), outputs))(*attend({}, {}, q)), has_aux=True)(q)

        attend = kn.functional(self.model)
        q = jax.ShapeDtypeStruct((self.config.rows, self.config.length, 2, 8), jnp.float32)
        return {"train_step": Program("train_step", step, (q,), environment=environment)}


class Locked(Kernel):
    name = "attention.gpu.locked"
    operation = "attention"
    fused = True

    def supports(self, problem, device):
        return Verdict(problem.q_length <= 16, f"q_length {problem.q_length} is over 16")

    def forward(self, problem, operands):
        raise ModuleNotFoundError("vendor_library")


class Slow(ReferenceAttention):
    name = "attention.cpu.slow"
    platforms = ("cpu",)
    priority = 99

    def apply(self, problem, operands):
        out = super().apply(problem, operands)
        big = jnp.ones((1500, 1500)) + out[0, 0, 0, 0]
        return out + 0 * jnp.tanh(big @ big @ big)[0, 0]

    def tunings(self, problem, device):
        return ((("block", 5),),)


@hookimpl
def kanawa_device_specs():
    sizes = ("memory_bytes", "memory_bandwidth", "link_bandwidth", "network_bandwidth")
    return [DeviceSpec(name="loom", platform="gpu", device_kinds=("Loom",), chips_per_host=8, source="here",
                       **dict.fromkeys(sizes, 1))]


def tiny():
    return Work.Config()
"""


#: Alone, core has no mesh rule for the eight devices of its tests.
ONE = ("--on", "cpu-1")


@pytest.fixture(autouse=True)
def experiment(fake_distribution, monkeypatch, tmp_path):
    monkeypatch.setenv("KANAWA_TUNING", str(tmp_path / "tuning.json"))
    entry_points = {
        "kanawa.plugins": ["fake-tiny = fake_tiny"],
        "kanawa.experiments": ["tiny = fake_tiny:tiny"],
        "kanawa.kernels": ["attention.gpu.locked = fake_tiny:Locked", "attention.cpu.slow = fake_tiny:Slow"],
    }
    fake_distribution("fake-tiny", entry_points, {"fake_tiny": WORK})


def told(capsys, *arguments, code=0):
    assert main(["kernels", "tiny", *arguments]) == code
    return capsys.readouterr()


def test_a_kernel_is_named_where_its_library_is_missing(capsys):
    (choice,) = json.loads(told(capsys, "--on", "loom-1", "--json").out)
    assert (choice["operation"], choice["kernel"]) == ("attention", "attention.gpu.locked")


def test_fallbacks_are_listed_and_then_judged(capsys):
    assert told(capsys, "--on", "loom-1", "--require-fused").err == ""
    said = told(capsys, "--on", "loom-1", "--require-fused", "--set", "length=32", code=1)
    assert "not attention.gpu.locked: q_length 32 is over 16" in said.out
    assert "1 of 1 calls get no fused kernel; change the problem" in said.err
    assert "gets attention.any.reference" in said.err
    # A CPU has no fused kernels to ask for.
    assert told(capsys, "--require-fused", "--set", "length=32").err == ""


def test_what_bench_measures_is_used_from_then_on(capsys, tmp_path):
    first = json.loads(told(capsys, "--json").out)[0]["kernel"]
    assert first == "attention.cpu.slow"
    said = told(capsys, "--bench", *ONE).out
    assert "attention.cpu.slow block=5, temporary" in said
    assert "attention.any.reference, temporary 0 MiB  <- used from now on" in said
    assert f"wrote 1 problem to {tmp_path / 'tuning.json'}" in said
    assert json.loads(told(capsys, "--json").out)[0]["kernel"] == "attention.any.reference"
    unused = told(capsys, "--json", "--set", "execution.tuning=none").out
    assert json.loads(unused)[0]["kernel"] == "attention.cpu.slow"


def test_bench_writes_and_a_config_names_a_table(capsys, tmp_path):
    table = tmp_path / "table.json"
    measured = json.loads(told(capsys, "--bench", *ONE, "--json", "--table", str(table)).out)
    assert measured["table"] == str(table)
    (one,) = measured["measured"]
    assert {(m["kernel"], tuple(m["tuning"])) for m in one["measured"]} >= {("attention.cpu.slow", ("block",))}
    used = told(capsys, "--json", "--set", f"execution.tuning={table}").out
    assert json.loads(used)[0]["kernel"] == "attention.any.reference"
    assert json.loads(told(capsys, "--json").out)[0]["kernel"] == "attention.cpu.slow"


def test_what_is_not_here_cannot_be_measured(capsys):
    said = told(capsys, "--bench", "--on", "loom-1", code=2).err
    assert "--bench measures on this machine's devices, which are cpu (cpu), and --on asks for loom-1" in said


def test_a_problem_larger_than_the_machine_is_not_tried(capsys, tmp_path):
    said = told(capsys, "--bench", *ONE, "--set", f"rows={2**26}", code=1).out
    assert re.search(r"not measured: its operands take \d+,\d+ MiB and with gradients some 6 times that, of ", said)
    assert "nothing was measured" in said
    assert not (tmp_path / "tuning.json").exists()


def test_a_table_that_is_not_there_or_not_one_is_an_error(capsys, tmp_path):
    said = told(capsys, "--set", "execution.tuning=gone.json", code=2).err
    assert "execution.tuning: there is no file 'gone.json'; expected auto, none, or a table" in said
    (tmp_path / "tuning.json").write_text("{}")
    assert "isn't a tuning table" in told(capsys, code=2).err


@pytest.mark.skipif(os.geteuid() == 0, reason="root enters every folder")
def test_a_home_that_cannot_be_entered_has_no_table(capsys, tmp_path):
    tmp_path.chmod(0)
    try:
        assert json.loads(told(capsys, "--json").out)[0]["kernel"] == "attention.cpu.slow"
    finally:
        tmp_path.chmod(0o700)


def test_a_table_that_may_not_be_read_is_none(capsys, monkeypatch):
    def denied(path, kind):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(environment, "measured_uses", denied)
    assert json.loads(told(capsys, "--json").out)[0]["kernel"] == "attention.cpu.slow"
