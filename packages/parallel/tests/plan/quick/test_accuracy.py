"""A quick plan names an error only where programs of its kind were compared with compiled ones."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from kanawa.kernels.choice import KernelChoice, scope_name
from kanawa_parallel.plan.quick.accuracy import KINDS, accuracy, compared
from kanawa_parallel.plan.quick.equations import flat_scope
from kanawa_parallel.plan.quick.estimate import lay_out_program

SCOPE = scope_name("attention.any.reference", "a problem")


def choices(attention="attention.any.reference", *others):
    return [KernelChoice(name.partition(".")[0], "a problem", name) for name in (attention, "matmul.any.xla", *others)]


def walked(looped=True, **mesh):
    def layer(x, _):
        with jax.named_scope(SCOPE):
            return x @ x, None

    def step(x):
        return jax.lax.scan(layer, x, None, length=3)[0] if looped else layer(layer(x, None)[0], None)[0]

    x = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    return lay_out_program(flat_scope(jax.jit(step).trace(x).jaxpr), (x,), mesh)


def test_a_kind_is_found_by_attention_loop_target_and_mesh():
    found = {
        (written, looped, platform): compared(
            choices("attention.any.reference" if written else "attention.abacus.swift"),
            platform,
            walked(looped, fsdp=8, tensor=1),
        )
        for written in (True, False)
        for looped in (True, False)
        for platform in ("abacus", "cpu")
    }
    known = {key for key, kind in found.items() if kind}
    assert known == {(kind.written, kind.looped, "cpu" if kind.own else "abacus") for kind in KINDS}


@pytest.mark.parametrize(
    ("program", "chosen", "mesh"),
    [
        ("decode_step", choices(), {}),
        ("train_step", choices("attention.any.reference", "attention.abacus.swift"), {}),
        ("train_step", choices("attention.any.reference", "grouped_matmul.any.reference"), {}),
        ("train_step", choices("linear_recurrence.any.reference"), {}),
        ("train_step", choices(), {"stage": 4}),
        ("train_step", choices("attention.abacus.swift"), {"fsdp": 2, "tensor": 4}),
    ],
)
def test_no_bound_is_named_for_what_was_not_compared(program, chosen, mesh):
    said = accuracy(program, chosen, "abacus", walked(**mesh))
    assert said.startswith("programs of this kind were not compared with compiled plans, so no error bound is known")
    assert "%" not in said


def test_a_bound_is_that_of_its_own_kind():
    said = accuracy("train_step", choices(), "abacus", walked(fsdp=256))
    kind = next(kind for kind in KINDS if kind.written and kind.looped)
    assert said.startswith(f"memory was {kind.memory[0]:+.0%} to {kind.memory[1]:+.0%} and time {kind.seconds[0]:+.0%}")
    assert str(dataclasses.replace(kind, memory=(-0.5, 9.0))).startswith("memory was -50% to +900%")
