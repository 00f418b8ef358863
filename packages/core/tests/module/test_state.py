"""State belongs to modules: calls and iterations hand it on, and nothing changes its shape or drops it."""

import jax
import jax.numpy as jnp
import kanawa as kn
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from kanawa.errors import ContextError, ModuleError


class Counter(kn.Module):
    """Counts calls, and keeps a running sum of what it sees; the sum's order matters."""

    class Config(kn.Module.Config):
        records: bool = False

    def setup(self) -> None:
        self.add_state("calls", (), axes=(), dtype="int32")
        self.add_state("trace", (2,), axes=("norm",))

    def forward(self, x: jax.Array) -> jax.Array:
        self.update("calls", self.state("calls") + 1)
        self.update("trace", 0.5 * self.state("trace") + x.reshape(-1)[:2])
        if self.config.records:
            self.record("calls", kn.Sum(jnp.ones(())))
            self.add_loss("size", jnp.sum(x), 1.0)
            self.emit("x", x)
        return x + self.state("calls").astype(x.dtype)

    def counts_only(self, x: jax.Array) -> jax.Array:
        self.update("calls", self.state("calls") + 1)
        return x * 2.0

    def odd(self, x: jax.Array) -> jax.Array:
        self.update("trace", x)
        return x


class Holder(kn.Module):
    """Calls its one counter in every way there is; the stacked layers call it too, through `shared`."""

    class Config(kn.Module.Config):
        child: Counter.Config = Counter.Config()
        layer: Counter.Config = Counter.Config()

    def setup(self) -> None:
        self.add_child("child", self.config.child)
        self.add_child("layer", self.config.layer, stacked=4)
        self.share("counter", self.child)

    def named(self, x: jax.Array) -> jax.Array:
        with kn.call_name("a"):
            x = self.child(x)
        with kn.call_name("b"):
            return self.child(x)

    def unnamed(self, x: jax.Array) -> jax.Array:
        return self.child(self.child(x))

    def after_remat(self, x: jax.Array) -> jax.Array:
        return self.child(kn.remat(self.child)(x))

    def in_remat(self, x: jax.Array) -> jax.Array:
        return kn.remat(self.child)(self.child(x))

    def in_jit(self, x: jax.Array) -> jax.Array:
        return kn.jit(self.child)(self.child(x))

    def in_grad(self, x: jax.Array) -> jax.Array:
        value, _ = kn.value_and_grad(lambda z: self.child(z).sum())(self.child(x))
        return jnp.broadcast_to(value, x.shape)

    def in_scan(self, x: jax.Array, length: int, unrolled: bool = False, remat: bool = False) -> jax.Array:
        return kn.scan(lambda c, _: (self.child(c), None), x, length=length, unrolled=unrolled, remat=remat)[0]

    def in_nested_scans(self, x: jax.Array) -> jax.Array:
        def outer(c: jax.Array, _: None) -> tuple[jax.Array, None]:
            return kn.scan(lambda d, _: (self.child(d), None), c, length=2)[0], None

        return kn.scan(outer, x, length=3)[0]

    def beside_layers(self, x: jax.Array, unrolled: bool = False) -> jax.Array:
        def body(c: jax.Array, _: None) -> tuple[jax.Array, None]:
            return self.child(self.layer(c)), None

        return kn.scan(body, x, over="layer", unrolled=unrolled)[0]

    def in_windows(self, x: jax.Array) -> jax.Array:
        def body(c: jax.Array, _: None) -> tuple[jax.Array, None]:
            return self.layer(c), None

        x, _ = kn.scan(body, x, over="layer", length=3)
        return kn.scan(body, x, over="layer", start=3, length=1)[0]

    def layers_twice(self, x: jax.Array) -> jax.Array:
        def body(c: jax.Array, _: None) -> tuple[jax.Array, None]:
            return self.layer(c), None

        for _ in range(2):
            x, _ = kn.scan(body, x, over="layer")
        return x

    def in_while(self, x: jax.Array, times: int) -> jax.Array:
        return kn.while_loop(lambda c: c[0] < times, lambda c: (c[0] + 1, self.child(c[1])), (0, x))[1]

    def in_cond(self, x: jax.Array, flag: jax.Array) -> jax.Array:
        return kn.cond(flag, self.child, lambda y: y, x)

    def in_other_branch(self, x: jax.Array, flag: jax.Array) -> jax.Array:
        return kn.cond(flag, lambda y: y, self.child, self.child(x))

    def in_vmap(self, x: jax.Array) -> jax.Array:
        return kn.vmap(self.child.counts_only)(x)

    def in_vmap_by_element(self, x: jax.Array) -> jax.Array:
        return kn.vmap(self.child)(x)

    def wrong_shape(self, x: jax.Array) -> jax.Array:
        return self.child.odd(x)


class Borrower(kn.Module):
    """Reaches a counter that an ancestor shares, from inside a loop of its own."""

    class Config(kn.Module.Config):
        """None."""

    def forward(self, x: jax.Array) -> jax.Array:
        counter = self.shared_module("counter")
        return kn.scan(lambda c, _: (counter(c), None), x, length=3)[0]


class Lender(kn.Module):
    class Config(kn.Module.Config):
        counter: Counter.Config = Counter.Config()
        borrower: Borrower.Config = Borrower.Config()

    def setup(self) -> None:
        self.add_child("counter", self.config.counter)
        self.add_child("borrower", self.config.borrower)
        self.share("counter", self.counter)

    def forward(self, x: jax.Array) -> jax.Array:
        return self.borrower(self.counter(x))


X = jnp.array([[1.0, 2.0], [3.0, 4.0]])


@pytest.fixture(scope="module")
def holder():
    module = Holder.Config().build()
    return module, kn.initial_state(module, jax.random.key(0))


def run(bundle, method, *args, **kwargs):
    module, state = bundle
    result, outputs = kn.functional(module, method)({}, state, X, *args, **kwargs)
    after = kn.next_state(state, outputs)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state), "no call may change a shape, or add a path"
    assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, state)
    return result, after


def called(times):
    """The result and the child's state after this many calls in a row, by hand."""
    x, trace = X, jnp.zeros(2)
    for count in range(1, times + 1):
        trace = 0.5 * trace + x.reshape(-1)[:2]
        x = x + count
    return x, {"calls": jnp.int32(times), "trace": trace}


def same(a, b):
    return jax.tree.all(jax.tree.map(lambda p, q: jnp.allclose(p, q), a, b))


@pytest.mark.parametrize("method", ["named", "unnamed", "after_remat", "in_remat", "in_jit"])
def test_a_second_call_starts_from_what_the_first_left(holder, method):
    result, after = run(holder, method)
    expected, state = called(2)
    assert same(result, expected)
    assert same(after["child"], state)


def test_the_second_call_counts_under_grad_too(holder):
    result, after = run(holder, "in_grad")
    expected, state = called(2)
    assert same(result, jnp.full_like(X, expected.sum()))
    assert same(after["child"], state)


def test_named_calls_are_traceable_and_differentiable(holder):
    module, state = holder

    def loss(x):
        result, outputs = kn.functional(module, "named")({}, state, x)
        return result.sum() + 0.0 * outputs.state["child.trace"].sum(), outputs

    gradient, outputs = jax.jit(jax.grad(loss, has_aux=True))(X)
    assert same(gradient, jnp.ones_like(X)), "no gradient flows through state"
    assert int(outputs.state["child.calls"]) == 2


@pytest.mark.parametrize("unrolled", [False, True])
@pytest.mark.parametrize("remat", [False, True])
def test_a_scan_hands_state_from_one_iteration_to_the_next(holder, unrolled, remat):
    result, after = run(holder, "in_scan", 3, unrolled=unrolled, remat=remat)
    expected, state = called(3)
    assert same(result, expected)
    assert same(after["child"], state)


def test_nested_scans_hand_it_on(holder):
    result, after = run(holder, "in_nested_scans")
    assert same((result, after["child"]), called(6))


@pytest.mark.parametrize("unrolled", [False, True])
def test_layers_keep_a_state_each_and_what_is_beside_them_one(holder, unrolled):
    _, after = run(holder, "beside_layers", unrolled=unrolled)
    assert after["layer"]["calls"].tolist() == [1, 1, 1, 1]
    assert int(after["child"]["calls"]) == 4
    assert same(run(holder, "beside_layers", unrolled=not unrolled)[1], after)


def test_windows_of_layers_update_their_part_of_the_whole(holder):
    _, after = run(holder, "in_windows")
    assert after["layer"]["calls"].tolist() == [1, 1, 1, 1]
    whole, _ = run(holder, "beside_layers")
    assert whole.shape == X.shape


def test_a_second_pass_over_the_layers_goes_on(holder):
    assert run(holder, "layers_twice")[1]["layer"]["calls"].tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("times", [0, 3])
def test_a_while_loop_hands_it_on(holder, times):
    result, after = run(holder, "in_while", times)
    assert same((result, after["child"]), called(times))


@pytest.mark.parametrize("flag", [True, False])
def test_a_branch_that_leaves_state_alone_keeps_it(holder, flag):
    result, after = run(holder, "in_cond", jnp.array(flag))
    assert same((result, after["child"]), called(int(flag)))
    result, after = run(holder, "in_other_branch", jnp.array(flag))
    assert same((result, after["child"]), called(2 - int(flag)))


def test_an_ancestors_module_is_reached_from_inside_a_loop():
    module = Lender.Config().build()
    result, after = run((module, kn.initial_state(module, jax.random.key(0))), "forward")
    assert same((result, after["counter"]), called(4))
    assert set(after) == {"counter"}


def test_vmap_updates_once_what_is_the_same_for_every_element(holder):
    _, after = run(holder, "in_vmap")
    assert int(after["child"]["calls"]) == 1


def test_vmap_refuses_state_that_differs_by_element(holder):
    with pytest.raises(ContextError, match=r"Holder: kn.vmap runs a body that updates child.calls, child.trace differ"):
        run(holder, "in_vmap_by_element")


def test_an_update_of_another_shape_is_refused(holder):
    with pytest.raises(ModuleError, match=r"child: state 'trace' has shape \(2,\), and an update has \(2, 2\)"):
        run(holder, "wrong_shape")


def test_outputs_of_named_calls_stay_apart_while_state_is_one():
    module = Holder.Config(child=Counter.Config(records=True)).build()
    state = kn.initial_state(module, jax.random.key(0))
    _, outputs = kn.functional(module, "named")({}, state, X, emit=("**",))
    assert set(outputs.metrics) == {"child@a.calls", "child@b.calls"}
    assert set(outputs.losses) == {"child@a.size", "child@b.size"}
    assert set(outputs.emitted) == {"child@a.x", "child@b.x"}
    assert set(outputs.state) == {"child.calls", "child.trace"}


@pytest.mark.parametrize("unrolled", [False, True])
def test_a_loop_stacks_emissions_and_sums_the_rest(unrolled):
    module = Holder.Config(child=Counter.Config(records=True)).build()
    state = kn.initial_state(module, jax.random.key(0))
    scanned = kn.functional(module, "in_scan")
    _, outputs = scanned({}, state, X, 3, unrolled=unrolled, emit=("child.x",))
    assert outputs.emitted["child.x"].shape == (3, 2, 2)
    assert float(outputs.metrics["child.calls"].value()) == 3.0
    assert float(outputs.losses["child.size"].weight) == 3.0


def test_a_while_loop_refuses_what_has_nowhere_to_go():
    module = Holder.Config(child=Counter.Config(records=True)).build()
    state = kn.initial_state(module, jax.random.key(0))
    with pytest.raises(ContextError, match=r"recorded child.calls, child.size, and how often it runs is unknown"):
        kn.functional(module, "in_while")({}, state, X, 2)


def test_a_loop_without_state_is_traced_once():
    traces = []

    class Plain(kn.Module):
        class Config(kn.Module.Config):
            """None."""

        def forward(self, x: jax.Array) -> jax.Array:
            def body(c: jax.Array, _: None) -> tuple[jax.Array, None]:
                traces.append(1)
                return c + 1.0, None

            return kn.scan(body, x, length=3)[0]

    kn.functional(Plain.Config().build())({}, {}, X)
    assert len(traces) == 1


def test_shards_start_from_what_was_written_before_them(holder):
    class Sharded(Holder):
        """Calls its child once outside of shard_map and once inside."""

        class Config(Holder.Config):
            """The same."""

        def forward(self, x: jax.Array) -> jax.Array:
            run = kn.shard_map(self.child.counts_only, in_specs=(P("data"),), out_specs=P("data"), axis_names=("data",))
            return run(self.child.counts_only(x))

    module = Sharded.Config().build()
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    with jax.set_mesh(mesh):
        _, outputs = jax.jit(kn.functional(module))({}, holder[1], X)
    assert int(outputs.state["child.calls"]) == 2
