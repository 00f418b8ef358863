"""`kanawa kernels --schedule`: what a backend tells of a kernel, for typical problems or an experiment's; errors."""

import json

import pytest
from kanawa.cli.main import main

LOOM = """
import dataclasses

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.contracts import Program, Workload
from kanawa.kernels import CAUSAL, Kernel, Verdict
from kanawa.kernels.attention import attention
from kanawa.plugins import DeviceSpec, KernelSchedule, Region, hookimpl


class Attends(kn.Module):
    class Config(kn.Module.Config):
        pass

    def forward(self, q):
        return attention(q, q, q, mask=CAUSAL, scale=0.125)


class Work(Workload):
    class Config(Workload.Config):
        model: kn.Module.Config = Attends.Config()

    def programs(self, environment):
        def step(q):
            return kn.functional(self.model)({}, {}, q)

        q = jax.ShapeDtypeStruct((3, 16, 2, 8), jnp.float32)
        return {"train_step": Program("train_step", step, (q,), environment=environment)}


def tiny():
    return Work.Config()


class Weft(Kernel):
    name = "attention.loom.weft"
    operation = "attention"
    platforms = ("loom",)

    def supports(self, problem, device):
        return Verdict(problem.head_dim <= 256, f"head_dim {problem.head_dim} is over 256")

    def forward(self, problem, operands):
        raise ModuleNotFoundError("vendor_library")


class Plain(Weft):
    name = "attention.loom.plain"


@hookimpl
def kanawa_device_specs():
    sizes = ("memory_bytes", "memory_bandwidth", "link_bandwidth", "network_bandwidth")
    one = dict.fromkeys(sizes, 1)
    return [DeviceSpec(name="loom", platform="loom", chips_per_host=8, source="here", clock_hz=1e9, **one),
            DeviceSpec(name="mute", platform="mute", chips_per_host=8, source="here", **one)]


@hookimpl
def kanawa_kernel_schedules(request):
    if request.target.device.platform != "loom":
        return None
    if request.kernel.endswith("plain"):
        return []
    regions = (
        Region(name="call", bundles=10, runs=1, units={"SHUTTLE": 1}),
        Region(name="loop", depth=1, bundles=90, runs=request.problem.num_heads, units={"SHUTTLE": 90}),
    )
    calls = [
        KernelSchedule(call="weft", direction="forward", compiler="loomc 1", cores=2, grid=(4, 0), regions=regions,
                       capacity={"SHUTTLE": 2}, spills=7, fills=8, step_cycles=90.0,
                       cycles=1000.0 * request.problem.batch, peak_share=0.5, notes=("a note",)),
        KernelSchedule(call="warp", direction="backward", compiler="loomc 1", counted="instructions", registers=255,
                       shared_bytes=4096, occupancy=0.25),
    ]
    return [dataclasses.replace(each, notes=(*each.notes, str(request.tuning))) for each in calls]
"""


@pytest.fixture(autouse=True)
def loom(fake_distribution):
    entry_points = {
        "kanawa.plugins": ["fake-loom = fake_loom"],
        "kanawa.experiments": ["tiny = fake_loom:tiny"],
        "kanawa.kernels": ["attention.loom.weft = fake_loom:Weft", "attention.loom.plain = fake_loom:Plain"],
    }
    fake_distribution("fake-loom", entry_points, {"fake_loom": LOOM})


def told(capsys, *arguments, code=0):
    assert main(["kernels", *arguments]) == code
    return capsys.readouterr()


def weft(capsys, *arguments, code=0):
    return told(capsys, "--schedule", "attention.loom.weft", "--on", "loom-1", *arguments, code=code)


def test_figures_of_a_typical_problem(capsys):
    said = weft(capsys, "--tuning", "block=512").out
    assert "attention.loom.weft on loom, by loomc 1" in said
    assert "for train bfloat16 q[1,4096,32,128] kv[1,4096,8,128] causal" in said
    assert "1,000 cycles a call on each of 2 cores (0.001 ms), 50% of the matrix units' peak" in said
    assert "90 cycles a tile; grid of a core 4 x ?" in said
    assert "100 bundles, 7 spills, 8 fills" in said
    assert said.split("loop")[1].split()[:3] == ["90", "32", "50%"]
    assert "255 registers a thread, 4,096 bytes shared, occupancy 25%, 0 spills, 0 fills" in said
    assert "(('block', 512),)" in said


def test_problems_of_an_experiment_and_json(capsys):
    (shown,) = json.loads(weft(capsys, "tiny", "--json").out)
    assert shown["problem"].startswith("train float32 q[3,16,2,8]")
    forward, backward = shown["calls"]
    assert (forward["cycles"], forward["seconds"], forward["bundles"]) == (3000.0, 3e-6, 100)
    assert (backward["registers"], backward["cycles"], backward["seconds"]) == (255, None, None)


def test_a_problem_is_changed_field_by_field(capsys):
    changes = "num_heads=4,num_kv_heads=4,mask.window=(99,None),dtype=float32"
    (shown,) = json.loads(weft(capsys, "--problem", changes, "--json").out)
    assert "float32 q[1,4096,4,128]" in shown["problem"]
    assert "window" in shown["problem"]


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("head_dm=64", "AttentionProblem has no field 'head_dm'; did you mean 'head_dim'"),
        ("mask.cusal=true", "MaskSpec has no field 'cusal'; did you mean 'causal'"),
        ("batch.rows=1", "batch is 1, which has no fields; give batch=VALUE"),
        ("batch=many", "batch is 1; 'many' isn't of its kind"),
        ("batch", "'batch' is no name=value"),
    ],
)
def test_a_change_that_cannot_be_is_named(capsys, problem, message):
    assert message in weft(capsys, "--problem", problem, code=2).err


def test_what_cannot_be_scheduled_says_why(capsys):
    unknown = told(capsys, "--schedule", "attention.loom.weff", "--on", "loom-1", code=2).err
    assert "no kernel 'attention.loom.weff' is installed; did you mean 'attention.loom.weft'" in unknown
    elsewhere = told(capsys, "--schedule", "attention.loom.weft", "--on", "mute-1", code=2).err
    assert "attention.loom.weft is a kernel for loom, and mute-1 is mute" in elsewhere
    refused = weft(capsys, "--problem", "head_dim=512", code=1).err
    assert "refuses train bfloat16 q[1,4096,32,512]" in refused
    assert "on loom: head_dim 512 is over 256; ask for another with --problem" in refused
    plain = told(capsys, "--schedule", "attention.loom.plain", "--on", "loom-1", code=1).err
    assert "attention.loom.plain makes no call of its own: its work is plain JAX" in plain
    silent = told(capsys, "--schedule", "attention.any.reference", "--on", "mute-1", code=1).err
    assert "no installed backend shows what is compiled for mute-1 (mute)" in silent
    assert "say which, such as --on v5p-8" in told(capsys, "--schedule", "attention.loom.weft", code=2).err
    assert "name an EXPERIMENT whose kernels to show" in told(capsys, "--on", "loom-1", code=2).err
    assert "settings are whole numbers" in weft(capsys, "--tuning", "block=wide", code=2).err
    both = weft(capsys, "tiny", "--problem", "batch=2", code=2).err
    assert "an experiment has its own; leave out one of them" in both
