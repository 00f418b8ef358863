"""A stranger's matmul kernel is used by every layer: projections, heads, adapters and quantised weights."""

import jax
import jax.numpy as jnp
import kanawa as kn
import pytest
from kanawa.contracts import Batch, Weighted
from kanawa.kernels import Kernel, Verdict
from kanawa.kernels.matmul.problem import ReferenceMatmul
from kanawa.plugins import PluginHost, set_host
from kanawa.plugins.discovery import Entry, Provider, discover
from kanawa_layers.basic.linear import Linear
from kanawa_layers.recipes.llama import llama
from kanawa_layers.tune.eight_bit_training import Int8Training
from kanawa_layers.tune.lora import LoRA
from kanawa_layers.tune.weight_only import Int8Weights

TOKENS = jnp.zeros((2, 9), jnp.int32)


class StrangersMatmul(Kernel):
    """Computes what the reference does, and notes what it was asked."""

    name = "matmul.cpu.strangers"
    operation = "matmul"
    priority = 1000
    asked: list = []

    def supports(self, problem, device):
        return Verdict(ok=True)

    def forward(self, problem, operands):
        self.asked.append(problem)
        return ReferenceMatmul().forward(problem, operands)


@pytest.fixture
def asked():
    """What the kernel was asked, while it is installed."""
    entry = Entry(kind="kernels", name=StrangersMatmul.name, value=f"{__name__}:StrangersMatmul")
    found = [*discover(), Provider(name="stranger", version="1.0", entries=(entry,))]
    old = set_host(PluginHost(discover=lambda: found))
    StrangersMatmul.asked.clear()
    jax.clear_caches()
    yield StrangersMatmul.asked
    set_host(old)
    jax.clear_caches()


def tiny(*, tied=False, form=None, adapter=None):
    cfg = llama(num_layers=1, input_dim=32, num_heads=4, num_kv_heads=2, hidden_dim=48, vocab_size=61, tied=tied)
    if form is not None:
        kn.replace(cfg, target=Weighted, edit=lambda node: node.set(form=form.Config()))
    if adapter is not None:
        kn.replace(cfg, target=Linear, edit=lambda node: node.set(adapter=adapter.Config()))
    return cfg.build()


#: Weights of one layer, as (inputs, outputs): q and output projection, k and v, gate and up, down.
PROJECTIONS = [(32, 32), (32, 32), (32, 16), (32, 16), (32, 48), (32, 48), (48, 32)]
HEAD = (32, 61)
#: A LoRA of rank 8 adds two to each projection.
ADAPTED = [(inner, 8) for inner, _ in PROJECTIONS] + [(8, outputs) for _, outputs in PROJECTIONS]
CASES = {
    "untied": ({}, [*PROJECTIONS, HEAD]),
    "tied": ({"tied": True}, [*PROJECTIONS, HEAD]),
    "lora": ({"adapter": LoRA}, [*PROJECTIONS, *ADAPTED, HEAD]),
    "weights in int8": ({"form": Int8Weights}, [*PROJECTIONS, HEAD]),
}


@pytest.mark.parametrize("case", CASES)
def test_every_matmul_of_activations_with_a_weight_is_its(case, asked):
    options, expected = CASES[case]
    model = tiny(**options)
    params = jax.eval_shape(lambda: kn.initialize(model, jax.random.key(0)))
    lowered = jax.jit(lambda p: kn.functional(model, "predict")(p, {}, TOKENS)).lower(params)
    choices = [choice for choice in lowered.out_info[1].kernels if choice.operation == "matmul"]
    assert {choice.kernel for choice in choices} == {StrangersMatmul.name}
    found = [(c.local_problem.inner, c.local_problem.outputs) for c in choices for _ in range(c.count)]
    assert sorted(found) == sorted(expected)
    # Equal calls are lowered once.
    assert {(problem.inner, problem.outputs) for problem in asked} == set(expected)
    assert {problem.rows for problem in asked} == {18}
    heads = [problem for problem in asked if problem.logits]
    assert [head.weight_layout for head in heads] == ["outputs_first" if case == "tied" else "inner_first"]


@pytest.mark.parametrize("form", [Int8Training, None])
def test_gradients_are_its_too(form, asked):
    model = tiny(form=form)
    params = jax.eval_shape(lambda: kn.initialize(model, jax.random.key(0)))

    def loss(p):
        return kn.functional(model)(p, {}, Batch.of_tokens(TOKENS), train=True)[1].total_loss()

    jax.jit(jax.grad(loss)).lower(params)
    shapes = {(problem.rows, problem.inner, problem.outputs) for problem in asked}
    rows = 16
    # Each weight's gradient sums over the rows; int8 training computes the other two matmuls in int8.
    assert {(inner, rows, outputs) for inner, outputs in PROJECTIONS} <= shapes
    assert ({(rows, outputs, inner) for inner, outputs in PROJECTIONS} <= shapes) == (form is None)
