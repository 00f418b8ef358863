"""More devices than a CPU stands in for: two smaller meshes say what the whole one does, where that compiles too."""

import dataclasses

import kanawa as kn
import pytest
from kanawa.errors import TargetError
from kanawa_parallel.plan import compilation
from kanawa_parallel.plan.analyse import analyse
from kanawa_parallel.plan.compiled.compilation import compile_program
from kanawa_parallel.plan.larger import Smaller, smaller, with_rows

#: Sizes that six, three and two divide, and rows so long that nobody would gather a batch to save on sums of gradients.
DIVISIBLE = ["model.input_dim=24", "model.vocab_size=36", "length=256"]


@pytest.fixture
def composition(job):
    return kn.compose("plan-job", "distant-6", [], DIVISIBLE)


@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_two_smaller_meshes_say_what_the_whole_one_does(composition, monkeypatch):
    whole = analyse(composition, compile_program(composition, "train_step"))
    monkeypatch.setattr(compilation, "MOST_CPU_DEVICES", 4)
    carried = analyse(composition, compile_program(composition, "train_step"))
    assert "partitioned for 3 and 2 of 6 along fsdp" in carried.note
    assert not carried.compiled
    for name in ("flops_per_device", "flops_per_step", "bytes_per_device", "estimated_seconds", "step_seconds"):
        assert getattr(carried, name) == pytest.approx(getattr(whole, name), rel=0.02), name
    for name in ("mesh", "devices", "chips", "tokens_per_step", "model_flops_per_step", "fits"):
        assert getattr(carried, name) == getattr(whole, name), name
    arguments = ("parameters", "optimizer", "inputs")
    assert [carried.memory[kind] for kind in arguments] == [whole.memory[kind] for kind in arguments]
    assert carried.memory["total"] == pytest.approx(whole.memory["total"], rel=0.05)
    assert [(r.axes, r.kind) for r in carried.traffic] == [(r.axes, r.kind) for r in whole.traffic]
    for row, same in zip(carried.traffic, whole.traffic, strict=True):
        assert (row.count, row.bytes) == pytest.approx((same.count, same.bytes), rel=0.02)


def test_the_longest_axis_that_splits_the_batch_is_cut_to_its_largest_divisors(composition):
    program = compilation.prepare(composition, "abstract").program("train_step")
    assert smaller({"fsdp": 1024, "tensor": 4}, program, 2048) == Smaller("fsdp", 1024, (512, 256))
    assert smaller({"fsdp": 1008, "tensor": 4}, program, 2048) == Smaller("fsdp", 1008, (504, 336))


@pytest.mark.parametrize("mesh", [{"fsdp": 4099}, {"fsdp": 1, "tensor": 4096}, {"fsdp": 2, "tensor": 2048}])
def test_a_mesh_that_cannot_be_cut_is_refused_with_what_could(composition, mesh):
    program = compilation.prepare(composition, "abstract").program("train_step")
    with pytest.raises(TargetError) as error:
        smaller(mesh, program, 2048)
    said = str(error.value)
    assert "XLA gives a process 2,048 at most" in said
    assert "two divisors" in said and "--modify mesh:axes=" in said
    assert f"tensor {mesh.get('tensor', 1)}" in said or "fsdp 4099" in said


def test_rows_are_those_of_the_field_that_says_them(composition):
    fewer = with_rows(composition, 12)
    assert (fewer.config.batch_shape().rows, composition.config.batch_shape().rows) == (12, 24)
    assert fewer.config.is_frozen
    odd = dataclasses.replace(composition, config=NoField())
    with pytest.raises(TargetError, match="no field of plan-job says how many rows its batch has"):
        with_rows(odd, 12)


class NoField:
    """A config whose batch is a constant."""

    def fields(self):
        return {}

    def batch_shape(self):
        return None
