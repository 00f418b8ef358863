"""Name stacks, as JAX writes them through every transform, lead to the module that asked for the work."""

import pytest
from kanawa_parallel.plan.read.attribution import module_of

PATHS = frozenset({"embedding", "stack", "stack.layer", "stack.layer.attention", "stack.layer.attention.key", "loss"})


@pytest.mark.parametrize(
    ("op_name", "module"),
    [
        ("jit(train_step)/jvp(stack)/while/body/closed_call/layer/attention/key/dot_general",
         "model.stack.layer.attention.key"),
        ("jit(train_step)/transpose(jvp(stack))/while/body/closed_call/checkpoint/layer/attention/shard_map/vmap(f)/mul",
         "model.stack.layer.attention"),
        ("jit(f)/transpose(jvp(stack))/while/body/closed_call/checkpoint/rematted_computation/layer/attention/key/dot",
         "model.stack.layer.attention.key"),
        ("jit(train_step)/jvp(loss)/shard_map/while", "model.loss"),
        ("jit(train_step)/reduce_sum", "(step)"),
        ("", "(compiler)"),
    ],
)  # fmt: skip
def test_name_stacks(op_name, module):
    assert module_of(op_name, PATHS) == module
