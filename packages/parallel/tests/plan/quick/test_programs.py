"""Layouts, collectives, saved values and recomputation of small programs, against what XLA makes of them."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from kanawa.kernels.choice import scope_name
from kanawa.plugins import Calibration, DeviceSpec
from kanawa_parallel.plan.cost.kernel_cost import KernelCost, KernelCosts
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.cost.machine import Machine
from kanawa_parallel.plan.quick.buffers import Memory
from kanawa_parallel.plan.quick.equations import flat_scope
from kanawa_parallel.plan.quick.estimate import lay_out_program
from kanawa_parallel.plan.quick.roofline import Rates, Roofline
from kanawa_parallel.plan.quick.walk import flops

LAYERS, ROWS, WIDTH, HIDDEN = 8, 2048, 64, 256
MESH = AbstractMesh((2, 4), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)


def array(*shape, spec=None, mesh=MESH):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=None if spec is None else NamedSharding(mesh, P(*spec)))


def loss(params, x, policy=None):
    """Runs layers of two matmuls under a policy of rematerialisation."""

    def layer(x, weights):
        up, down = weights
        hidden = jax.ad_checkpoint.checkpoint_name(x @ up, "hidden")
        return jnp.tanh(x + jax.nn.relu(hidden) @ down), None

    body = layer if policy is None else jax.checkpoint(layer, policy=policy)
    return jnp.sum(jax.lax.scan(body, x, params)[0])


def walked(fn, *args, mesh=None):
    traced = jax.jit(fn).trace(*args)
    return lay_out_program(flat_scope(traced.jaxpr), args, dict(mesh.shape) if mesh else {})


def total_flops(scope):
    return sum(flops(step, scope.mesh) + sum(n * total_flops(inner) for n, inner in step.inner) for step in scope.steps)


POLICIES = {
    "all": None,
    "none": jax.checkpoint_policies.nothing_saveable,
    "hidden": jax.checkpoint_policies.save_only_these_names("hidden"),
}
FORWARD = 2 * 2 * ROWS * WIDTH * HIDDEN * LAYERS


@pytest.mark.parametrize(("name", "passes"), [("all", 3), ("none", 4), ("hidden", 3.5)])
def test_recomputed_matmuls_and_saved_values_are_those_of_the_policy(name, passes):
    weights = (array(LAYERS, WIDTH, HIDDEN), array(LAYERS, HIDDEN, WIDTH))
    step = jax.grad(functools.partial(loss, policy=POLICIES[name]))
    x = array(ROWS, WIDTH)
    scope = walked(step, weights, x)
    assert total_flops(scope) == pytest.approx(passes * FORWARD)
    compiled = jax.jit(step).lower(weights, x).compile().memory_analysis().temp_size_in_bytes
    assert Memory(scope, in_place=True).peak == pytest.approx(compiled, rel=0.25)


def test_less_is_kept_when_more_is_recomputed():
    weights = (array(LAYERS, WIDTH, HIDDEN), array(LAYERS, HIDDEN, WIDTH))
    peaks = [
        Memory(walked(jax.grad(functools.partial(loss, policy=POLICIES[name])), weights, array(ROWS, WIDTH))).peak
        for name in ("none", "hidden", "all")
    ]
    assert peaks == sorted(peaks) and peaks[0] < 0.5 * peaks[2]


def attention_loss(x):
    """Runs layers of causal attention whose scores, [rows, length, length], are written to memory."""

    def layer(x, _):
        scores = jnp.einsum("btd,bsd->bts", x, x)
        causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        return jnp.einsum("bts,bsd->btd", jax.nn.softmax(jnp.where(causal, scores, -1e30)), x), None

    return jnp.sum(jax.lax.scan(layer, x, None, length=LAYERS)[0])


def test_written_scores_and_masks_are_cut_as_the_rows_are():
    """A loop's constants, masks among them, are made in the layout in which its body reads them."""
    step, shape = jax.grad(attention_loss), (64, 128, 16)
    alone = Memory(walked(step, array(*shape)), in_place=True).peak
    x = array(*shape, spec=(("data", "fsdp"),))
    spread = Memory(walked(step, x, mesh=MESH), in_place=True).peak
    assert spread == pytest.approx(alone / 8, rel=0.02)
    compiled = jax.jit(step).lower(array(*shape)).compile().memory_analysis().temp_size_in_bytes
    assert alone == pytest.approx(compiled, rel=0.25)


def test_what_stands_around_a_kernels_call_is_no_call_of_it():
    """A search for tiles in the scope of a kernel whose calls are known by their names, such as "gmm"."""
    scope_of_kernel = scope_name("grouped_matmul.abacus.swift", "a problem")

    def search(sizes, rows):
        with jax.named_scope(scope_of_kernel), jax.named_scope("gmm"):
            return jnp.searchsorted(jnp.cumsum(sizes), rows)

    scope = walked(search, array(8), array(ROWS))
    costs = KernelCosts((KernelCost(scope_of_kernel, 1e9, (("gmm", 1),)),))
    device = DeviceSpec(
        name="swift", platform="abacus", peak_flops={"float32": 1e9}, memory_bytes=1, memory_bandwidth=1,
        link_bandwidth=1, network_bandwidth=1, chips_per_host=1, source="made up",
    )  # fmt: skip
    rates = Rates(Machine(device, Links.of_devices(device, None, 1), costs))
    assert sum(work.flops for work in Roofline(scope, Memory(scope), rates).work) == 0


@pytest.mark.parametrize("adds", [False, True])
def test_rows_that_a_core_gathers_or_adds_up_take_cycles_each_unless_other_cores_do(adds):
    """A row of 200 elements takes twice the cycles of 128; with other cores the memory's bandwidth is the limit."""

    def take(table, rows, places):
        return table.at[places].add(rows) if adds else jnp.take(table, places, axis=0) * rows

    arguments = array(64, 200), array(ROWS, 200), jax.ShapeDtypeStruct((ROWS,), jnp.int32)
    scope = walked(take, *arguments)
    device = DeviceSpec(
        name="swift", platform="abacus", peak_flops={"float32": 1e9}, memory_bytes=1, memory_bandwidth=1e15,
        link_bandwidth=1, network_bandwidth=1, chips_per_host=1, source="made up", clock_hz=1e6,
    )  # fmt: skip
    links, seconds = Links.of_devices(device, None, 1), {}
    for room in (0.0, 64 * 200 * 4.0, 64 * 200 * 4.0 - 1):
        rates = Rates(Machine(device, links, calibration=Calibration(row_cycles=5.0, row_table_bytes=room)))
        seconds[room] = Roofline(scope, Memory(scope), rates).seconds.total
    alone, small, large = seconds.values()
    assert alone == small == pytest.approx(ROWS * 2 * 5.0 / 1e6, rel=1e-3) and large < alone / 1000


def moved(scope):
    own = [(move.kind, move.axes, move.bytes) for step in scope.steps for _, move in step.moves]
    own += [(move.kind, move.axes, move.bytes) for _, move in scope.closing]
    return own + [each for step in scope.steps for _, inner in step.inner for each in moved(inner)]


def test_weights_in_shards_are_gathered_where_rows_use_the_same_axis():
    scope = walked(
        jnp.matmul, array(ROWS, WIDTH, spec=(("data", "fsdp"),)), array(WIDTH, HIDDEN, spec=("fsdp",)), mesh=MESH
    )
    assert moved(scope) == [("all-gather", ("fsdp",), WIDTH * HIDDEN * 4 / 4)]
    assert scope.outputs[0].dims == (("data", "fsdp"), ())


def test_a_gradient_is_scattered_over_its_parameters_shards_and_summed_over_the_rest():
    def gradient(x, g):
        return jax.lax.with_sharding_constraint(x.T @ g, NamedSharding(MESH, P("fsdp")))

    rows = (("data", "fsdp"),)
    scope = walked(gradient, array(ROWS, WIDTH, spec=rows), array(ROWS, HIDDEN, spec=rows), mesh=MESH)
    assert moved(scope) == [
        ("reduce-scatter", ("fsdp",), WIDTH * HIDDEN * 4),
        ("all-reduce", ("data",), WIDTH * HIDDEN * 4 / 4),
    ]


def test_split_widths_need_one_sum_after_the_second_matmul():
    def block(x, up, down):
        return jax.lax.with_sharding_constraint(jax.nn.relu(x @ up) @ down, NamedSharding(MESH, P("data")))

    args = (
        array(ROWS, WIDTH, spec=("data",)),
        array(WIDTH, HIDDEN, spec=(None, "fsdp")),
        array(HIDDEN, WIDTH, spec=("fsdp",)),
    )
    scope = walked(block, *args, mesh=MESH)
    assert moved(scope) == [("all-reduce", ("fsdp",), ROWS * WIDTH * 4 / 2)]
    assert total_flops(scope) == 2 * 2 * ROWS * WIDTH * HIDDEN / 8


def test_collectives_inside_shards_are_those_that_are_asked_for():
    def body(x):
        return jax.lax.psum(jax.lax.all_to_all(x, "fsdp", 1, 0, tiled=True), "data")

    sharded = jax.shard_map(body, mesh=MESH, in_specs=P(("data", "fsdp")), out_specs=P("fsdp"), check_vma=False)
    scope = walked(sharded, array(ROWS, WIDTH, spec=(("data", "fsdp"),)), mesh=MESH)
    local = ROWS * WIDTH * 4 / 8
    assert moved(scope) == [("all-to-all", ("fsdp",), local), ("all-reduce", ("data",), local)]


def test_a_loops_sums_lie_as_what_is_added_to_them():
    def accumulate(x, g):
        def step(total, parts):
            new = jax.lax.with_sharding_constraint(parts[0].T @ parts[1], NamedSharding(MESH, P("fsdp")))
            return total + new, None

        return jax.lax.scan(step, jnp.zeros((WIDTH, HIDDEN)), (x, g))[0]

    rows = (None, ("data", "fsdp"))
    scope = walked(accumulate, array(4, ROWS, WIDTH, spec=rows), array(4, ROWS, HIDDEN, spec=rows), mesh=MESH)
    assert scope.outputs[0].dims == (("fsdp",), ())
    # The whole product before it is scattered, not the sum, is what takes most.
    assert Memory(scope).peak < 2 * WIDTH * HIDDEN * 4


def test_what_a_loop_hides_is_not_waited_for_around_it():
    """A layer's matmul takes 16 times as long as the gather of its weight, the head's half as long as its own."""

    def run(weights, head, x, last):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0], last @ head

    rows = (("data", "fsdp"),)
    args = (
        array(LAYERS, WIDTH, WIDTH, spec=(None, "fsdp")), array(WIDTH, WIDTH // 4, spec=("fsdp",)),
        array(ROWS, WIDTH, spec=rows), array(ROWS // 32, WIDTH, spec=rows),
    )  # fmt: skip
    scope = walked(run, *args, mesh=MESH)
    sent, layer_flops = 3 * WIDTH * WIDTH, 2 * ROWS // 8 * WIDTH * WIDTH
    gathering = layer_flops / 1e9 / 16
    device = DeviceSpec(
        name="slow", platform="cpu", peak_flops={"float32": 1e9}, memory_bytes=2**30, memory_bandwidth=1e12,
        link_bandwidth=sent / gathering, network_bandwidth=1.0, chips_per_host=8, domain_chips=8,
        link_latency_seconds=0.0, source="made up",
    )  # fmt: skip
    times = Roofline(scope, Memory(scope), Rates(Machine(device, Links.of_devices(device, None, 8))))
    assert sum(item.seconds for item in times.sent) == pytest.approx((LAYERS + 1 / 4) * gathering)
    assert sum(times.seconds.exposed.values()) == pytest.approx(gathering / 4 / 2, rel=0.01)


def test_a_scans_constants_and_carry_are_told_apart_by_any_version_of_jax():
    from kanawa_parallel.plan.quick.equations import scan_parts

    def run(carry, xs, w):
        return jax.lax.scan(lambda c, x: ((c[0] * w + x, {"a": c[1]["a"] * w}), x), carry, xs)

    jaxpr = jax.make_jaxpr(run)((jnp.ones(()), {"a": jnp.ones(2)}), jnp.ones(3), jnp.ones(()))
    (scan,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    consts, carried = scan_parts(scan.params)
    assert (consts, carried) == (len(scan.invars) - 3, 2)
