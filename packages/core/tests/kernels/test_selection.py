"""Choosing kernels: platform, pins, priority, ties, refusals, fused kernels, imports."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from kanawa.arrays.plan import ExecutionPlan, KernelPolicy, use_plan
from kanawa.errors import KernelError
from kanawa.kernels import CAUSAL, FULL, Kernel, Verdict
from kanawa.kernels.attention import attention
from kanawa.kernels.attention.problem import ATTENTION
from kanawa.kernels.platform import current_platform
from kanawa.kernels.selection import select
from kanawa.kernels.softmax_cross_entropy import SOFTMAX_CROSS_ENTROPY
from kanawa.plugins import DeviceSpec, hookimpl, host
from kanawa.testing.compare import examples_for, operations_with_examples
from kanawa_kernel_tools.examples.attention import BASE
from kanawa_kernel_tools.examples.softmax_cross_entropy import BASE as CROSS_ENTROPY

HERE = __name__


class Fake(Kernel):
    """Claims to do everything."""

    operation = "attention"

    def supports(self, problem, device):
        return Verdict(True)

    def forward(self, problem, operands):
        return jnp.repeat(operands["v"], problem.group_size, axis=2), None


class General(Fake):
    name = "attention.any.general"


class GpuSlow(Fake):
    name = "attention.gpu.slow"

    def tunings(self, problem, device):
        return ((("block", 32),), (("block", 64),))


class GpuTuned(Fake):
    name = "attention.gpu.tuned"

    def tunings(self, problem, device):
        return ((("block", 64),), (("warps", 2), ("block", 128)))


class GpuFused(Fake):
    name = "attention.gpu.fused"
    priority = 5
    fused = True


class GpuOther(GpuFused):
    name = "attention.gpu.other"


class GpuPicky(GpuFused):
    name = "attention.gpu.picky"
    priority = 9

    def supports(self, problem, device):
        return Verdict(problem.head_dim <= 32, f"head_dim {problem.head_dim} is over 32")


class Mislabelled(GpuFused):
    name = "attention.gpu.mislabelled"
    platforms = ("tpu",)


def values(*classes):
    return {c.name: f"{HERE}:{c.__name__}" for c in classes}


def choose(platform="gpu", pins=(), require_fused=False, problem=BASE):
    policy = KernelPolicy(pins=tuple(("attention", p) for p in pins), require_fused=require_fused)
    with use_plan(ExecutionPlan(kernels=policy, platform=platform)):
        return select(ATTENTION, problem).choice


def test_core_declares_its_kernels_by_their_own_names(core_metadata):
    assert "attention.any.reference" in core_metadata
    for name, value in core_metadata.items():
        module, _, attribute = value.partition(":")
        assert getattr(__import__(module, fromlist=[attribute]), attribute).name == name


def test_platform_comes_before_priority_and_priority_before_name(install):
    install(a=values(General, GpuSlow))
    assert choose().kernel == "attention.gpu.slow"
    install(a=values(General, GpuSlow, GpuFused))
    assert choose().kernel == "attention.gpu.fused"
    install(a=values(GpuOther, GpuFused))
    assert choose().kernel == "attention.gpu.fused"


def test_other_platforms_are_never_imported(install):
    install(a=values(General) | {"attention.tpu.splash": "module_that_would_fail:Splash"})
    choice = choose()
    assert (choice.kernel, choice.refused) == ("attention.any.general", ())
    on_tpu = choose("tpu")
    assert on_tpu.kernel == "attention.any.general"
    (refusal,) = on_tpu.refused
    assert refusal[0] == "attention.tpu.splash" and "module_that_would_fail" in refusal[1]


def test_a_refused_favourite_is_listed_with_its_reason(install):
    install(a=values(GpuPicky, GpuFused, Mislabelled))
    choice = choose()
    assert choice.kernel == "attention.gpu.fused"
    assert dict(choice.refused) == {
        "attention.gpu.picky": "head_dim 64 is over 32",
        "attention.gpu.mislabelled": "runs on tpu, not gpu",
    }
    assert choice.as_json()["problem"] == BASE.describe()
    assert choice.as_json()["refused"][0].keys() == {"kernel", "reason"}


def test_pins_win_in_their_order_and_must_hold(install):
    install(a=values(General, GpuFused, GpuPicky))
    assert choose(pins=["attention.any.general"]).kernel == "attention.any.general"
    pins = ["attention.gpu.picky", "attention.any.general"]
    assert choose(pins=pins).kernel == "attention.any.general"
    with pytest.raises(KernelError, match=r"picky refuses attention .* head_dim 64 is over 32"):
        choose(pins=["attention.gpu.picky"])
    with pytest.raises(KernelError, match=r"not installed for gpu; did you mean 'attention.gpu.fused'"):
        choose(pins=["attention.gpu.fuse"])


def test_a_tie_between_distributions_is_settled_by_their_names_and_said_once(install, caplog):
    install(b=values(GpuOther), a=values(GpuFused))
    choice = choose()
    assert choice.kernel == "attention.gpu.fused"
    pin = """--set 'execution.kernels={"attention": "b:attention.gpu.other"}'"""
    said = "a:attention.gpu.fused and b:attention.gpu.other rank equally: the first is used, and another with " + pin
    assert choice.note == said
    choose("gpu", require_fused=True)
    assert [record.message for record in caplog.records] == [said]
    assert choose(pins=["b:attention.gpu.other"]).kernel == "attention.gpu.other"


def test_of_equals_kanawas_own_kernel_is_used(install):
    install(a=values(GpuFused), kanawa=values(GpuOther))
    assert choose().kernel == "attention.gpu.other"


def test_requiring_a_fused_kernel_lists_every_refusal(install):
    install(a=values(General, GpuPicky, GpuFused))
    assert choose(require_fused=True).kernel == "attention.gpu.fused"
    install(a=values(General, GpuPicky))
    with pytest.raises(KernelError) as error:
        choose(require_fused=True)
    text = str(error.value)
    assert "gets attention.any.general, which isn't fused" in text
    assert "attention.gpu.picky: head_dim 64 is over 32" in text
    assert choose("cpu", require_fused=True).kernel == "attention.any.general"


def test_operations_without_fused_kernels_never_fail_for_one():
    with use_plan(ExecutionPlan(kernels=KernelPolicy(require_fused=True), platform="tpu")):
        selection = select(SOFTMAX_CROSS_ENTROPY, CROSS_ENTROPY)
    assert selection.choice.kernel == "softmax_cross_entropy.any.reference"


def test_nothing_installed_is_an_error_that_says_so(install):
    install(a=values(GpuPicky))
    with pytest.raises(KernelError, match=r"(?s)no installed kernel supports.*picky: head_dim"):
        choose()
    install(a={})
    with pytest.raises(KernelError, match="no other kernel of the operation is installed"):
        choose()


class AsksForTheDevice(Fake):
    name = "attention.gpu.asks"

    def supports(self, problem, device):
        return Verdict(False, f"device is {getattr(device, 'name', None)}")


class Hopper:
    """A plugin that knows one device."""

    @hookimpl
    def kanawa_device_specs(self):
        figures = dict.fromkeys(("memory_bytes", "memory_bandwidth", "link_bandwidth", "network_bandwidth"), 1)
        spec = DeviceSpec(
            name="h100",
            platform="gpu",
            lowered_as="cuda",
            device_kinds=("NVIDIA H100",),
            chips_per_host=8,
            source="test",
            **figures,
        )
        return [spec]


@pytest.mark.parametrize(("kind", "name"), [("NVIDIA H100", "h100"), ("NVIDIA X", None)])
def test_a_kernel_is_told_the_device_if_it_is_known(install, kind, name):
    install(a=values(General, AsksForTheDevice))
    host().register(Hopper(), "hopper")
    with use_plan(ExecutionPlan(platform="gpu", device_kind=kind)):
        choice = select(ATTENTION, BASE).choice
    assert dict(choice.refused) == {"attention.gpu.asks": f"device is {name}"}


def test_the_mesh_says_the_platform_before_the_process_does(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cuda")
    assert current_platform()[0] == "cuda"
    host().register(Hopper(), "hopper")
    assert current_platform()[0] == "gpu"
    with jax.set_mesh(jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))):
        assert current_platform() == ("cpu", "cpu")
        with use_plan(ExecutionPlan(platform="tpu", device_kind="TPU v5")):
            assert current_platform() == ("tpu", "TPU v5")


def test_a_new_host_is_asked_anew(install):
    install(a=values(General))
    x = jnp.ones((1, 2, 1, 4))
    assert jnp.all(attention(x, x, 2 * x) == 2)
    install(a={})
    with pytest.raises(KernelError, match="no installed kernel"):
        attention(x, x, x)


def test_a_strangers_platform_is_read_from_its_device(monkeypatch):
    """jax 0.10.0's abstract devices have a kind and no platform."""
    from types import SimpleNamespace

    from kanawa.kernels import platform
    from kanawa.plugins import DeviceSpec

    abacus = DeviceSpec(
        name="abacus",
        platform="beads",
        memory_bytes=1,
        memory_bandwidth=1.0,
        link_bandwidth=1.0,
        network_bandwidth=1.0,
        chips_per_host=1,
        source="a shop",
    )
    mesh = SimpleNamespace(abstract_device=SimpleNamespace(device_kind="Abacus 3"))
    monkeypatch.setattr(platform.jax.sharding, "get_abstract_mesh", lambda: mesh)
    monkeypatch.setattr(platform, "device_spec_of_kind", {"Abacus 3": abacus}.get)
    assert platform.current_platform() == ("beads", "Abacus 3")


def choose_again(recorded, pins=()):
    policy = KernelPolicy(pins=tuple(("attention", p) for p in pins), recorded=recorded)
    with use_plan(ExecutionPlan(kernels=policy, platform="gpu")):
        return select(ATTENTION, BASE).choice


class GpuDear(GpuFused):
    name = "attention.gpu.dear"
    priority = 99

    def supports(self, problem, device):
        return Verdict(ok=True, reason="each call copies the pool; take pages of 128")


def test_what_a_kernel_says_that_it_costs_is_told_with_the_choice(install):
    install(a=values(General, GpuDear))
    choice = choose()
    assert (choice.kernel, choice.note) == ("attention.gpu.dear", "each call copies the pool; take pages of 128")


def test_what_a_run_chose_is_kept_though_another_ranks_higher_now(install):
    install(a=values(General, GpuSlow))
    before = choose()
    recorded = (("attention", before.problem, before.kernel, ()),)
    assert choose_again(recorded).note == ""
    install(a=values(General, GpuSlow, GpuFused))
    again = choose_again(recorded)
    assert again.kernel == "attention.gpu.slow"
    assert again.note == (
        "kept as this run chose it; attention.gpu.fused, which ranks higher now, is used with "
        """--set 'execution.kernels={"attention": "attention.gpu.fused"}'"""
    )
    assert again.as_json()["note"] == again.note


def test_a_recorded_kernel_that_is_gone_or_refuses_is_replaced_with_its_reason(install):
    install(a=values(General, GpuPicky))
    problem = choose().problem
    gone = choose_again((("attention", problem, "attention.gpu.slow", ()),))
    assert gone.kernel == "attention.any.general"
    assert gone.note == "this run had attention.gpu.slow, which can't be used: it is not installed for gpu any more"
    refusing = choose_again((("attention", problem, "attention.gpu.picky", ()),))
    assert refusing.note == "this run had attention.gpu.picky, which can't be used: head_dim 64 is over 32"


def test_a_pin_wins_over_the_record_and_other_problems_are_free(install):
    install(a=values(General, GpuSlow, GpuFused))
    problem = choose().problem
    pinned = choose_again((("attention", problem, "attention.gpu.slow", ()),), pins=("attention.gpu.fused",))
    assert (pinned.kernel, pinned.note) == (
        "attention.gpu.fused",
        "pinned by the config; this run had attention.gpu.slow",
    )
    other = choose_again((("attention", "another problem", "attention.gpu.slow", ()),))
    assert (other.kernel, other.note) == ("attention.gpu.fused", "")


def choose_measured(*, policy, problem=BASE):
    with use_plan(ExecutionPlan(kernels=policy, platform="gpu")):
        return select(ATTENTION, problem)


def test_what_was_measured_beats_the_ranking_and_gives_the_kernel_its_tuning(install):
    install(a=values(General, GpuSlow, GpuFused))
    problem = BASE.describe()
    measured = (("attention", problem, "attention.gpu.slow", (("block", 64),)),)
    chosen = choose_measured(policy=KernelPolicy(measured=measured))
    assert chosen.choice.kernel == "attention.gpu.slow" and chosen.choice.note == ""
    assert chosen.choice.as_json()["tuning"] == {"block": 64}
    assert chosen.kernel.setting("block", 128) == 64 and chosen.kernel.setting("other", 128) == 128
    # One instance always: a kernel's identity is part of what JAX's caches know a trace by.
    assert choose_measured(policy=KernelPolicy(measured=measured)).kernel is chosen.kernel
    assert choose().tuning == ()


def test_a_measured_kernel_gives_way_to_pins_records_fused_kernels_and_its_own_absence(install):
    install(a=values(General, GpuSlow, GpuFused, GpuPicky))
    problem = BASE.describe()

    def chosen(kernel, **policy):
        use = (("attention", problem, kernel, (("block", 64),)),)
        choice = choose_measured(policy=KernelPolicy(measured=use, **policy)).choice
        return choice.kernel, choice.tuning

    fused = ("attention.gpu.fused", ())
    assert chosen("attention.gpu.slow", pins=(("attention", "attention.gpu.fused"),)) == fused
    assert chosen("attention.gpu.slow", recorded=(("attention", problem, "attention.gpu.fused", ()),)) == fused
    assert chosen("attention.gpu.slow", require_fused=True) == fused
    assert chosen("attention.gpu.picky") == fused
    assert chosen("attention.gpu.gone") == fused
    pin = (("attention", "attention.gpu.slow"),)
    assert chosen("attention.gpu.slow", pins=pin) == ("attention.gpu.slow", (("block", 64),))


def test_a_run_keeps_its_tuning_though_another_was_measured_since(install):
    install(a=values(General, GpuSlow))
    problem = BASE.describe()
    ran = (("attention", problem, "attention.gpu.slow", (("block", 32),)),)
    measured = (("attention", problem, "attention.gpu.slow", (("block", 64),)),)
    choice = choose_measured(policy=KernelPolicy(recorded=ran, measured=measured)).choice
    assert choice.tuning == (("block", 32),)


class Locked(GpuFused):
    name = "attention.gpu.locked"

    def forward(self, problem, operands):
        raise ModuleNotFoundError("vendor_library")


def test_a_survey_names_the_kernel_and_traces_a_general_one(install):
    install(a=values(General, Locked))
    with use_plan(ExecutionPlan(kernels=KernelPolicy(survey=True), platform="gpu")):
        selection = select(ATTENTION, BASE)
        q = jnp.zeros((2, 256, 4, 64))
        traced = jax.eval_shape(lambda q, k: attention(q, k, k, mask=CAUSAL, scale=0.125), q, q[:, :, :2])
    assert selection.choice.kernel == "attention.gpu.locked"
    assert selection.kernel.name == "attention.any.general"
    assert traced.shape == q.shape
    assert selection.choice.local_problem == BASE and not selection.choice.fallback
    assert not choose().fallback


def test_a_tuning_that_the_kernel_does_not_offer_is_left_out_and_told(install):
    """A table edited by hand, or written by an older kernel."""
    install(a=values(General, GpuTuned))
    problem = BASE.describe()
    table = (("attention", problem, "attention.gpu.tuned", (("block", 100),)),)
    choice = choose_measured(policy=KernelPolicy(measured=table)).choice
    assert (choice.kernel, choice.tuning) == ("attention.gpu.tuned", ())
    assert choice.note == (
        "block=100 of the tuning table or of this run's record isn't used: for this problem attention.gpu.tuned offers "
        "block=64; warps=2, block=128; `kanawa kernels EXPERIMENT --bench` measures them"
    )
    two = (("attention", problem, "attention.gpu.tuned", (("block", 128), ("warps", 2))),)
    choice = choose_measured(policy=KernelPolicy(measured=two)).choice
    assert (choice.tuning, choice.note) == ((("block", 128), ("warps", 2)), "")


OTHERS = {"dtype": "float16", "rhs_dtype": "float16", "weight_dtype": "float16", "mode": "prefill", "mask": FULL}


@pytest.mark.parametrize("operation", operations_with_examples())
def test_what_a_problem_is_described_by_tells_it_from_every_other(operation):
    """Tuning tables and runs know a problem by that line alone."""
    problem = examples_for(operation).problems[0]
    for field in dataclasses.fields(problem):
        old = getattr(problem, field.name)
        other = _another(field.name, old, problem)
        changed = dataclasses.replace(problem, **{field.name: other})
        assert changed.describe() != problem.describe(), f"{field.name}: {old} and {other} read alike"


def _another(name, old, problem):
    if name in OTHERS:
        return OTHERS[name]
    if name == "bias_shape":
        return (1, 1, problem.q_length, problem.kv_length)
    if isinstance(old, bool):
        return not old
    if isinstance(old, str):
        return "float8_e4m3fn" if "format" in name else "other"
    if isinstance(old, tuple):
        return ("tensor",) if name == "vocab_axes" else (*old[:-1], old[-1] * 2)
    return 0.5 if isinstance(old, float) or name in ("logit_cap",) else (old or 8) * 2
