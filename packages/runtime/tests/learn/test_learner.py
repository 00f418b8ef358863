"""The learner against optax, by value and by cost, and its exceptions by path."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kanawa.arrays.optimizer_state import OptimizerStateError, from_flat, to_flat
from kanawa.arrays.spec import ParamSpec
from kanawa_runtime.learn.adamw import AdamW
from kanawa_runtime.learn.learner import Learner, ParameterRule, ParameterRuleError, UpdateRule
from kanawa_runtime.learn.schedules import Constant, WarmupCosine
from kanawa_runtime.learn.sgd import SGD

SPECS = {
    "embed.weight": ParamSpec((32, 16), ("vocab", "embed")),
    "layers[0].norm.scale": ParamSpec((16,), ("embed",), weight_decay=0.0),
    "layers[0].up.weight": ParamSpec((16, 64), ("embed", "mlp"), lr_scale=0.5),
}


def _arrays(seed: int) -> dict[str, jax.Array]:
    random = np.random.default_rng(seed)
    return {p: jnp.asarray(random.standard_normal(s.shape), jnp.float32) for p, s in SPECS.items()}


def _norm(arrays: dict[str, jax.Array]) -> float:
    return float(np.linalg.norm(np.concatenate([np.ravel(a) for a in arrays.values()])))


def _rule(steps: int = 20, **fields: Any) -> UpdateRule:
    fields = {"schedule": WarmupCosine.Config(peak=1e-2, warmup_steps=3)} | fields
    return Learner.Config(**fields).build().update_rule(SPECS, steps)


def _train(rule: UpdateRule, steps: int) -> tuple[Any, Any, Any]:
    params, metrics = _arrays(0), {}
    opt = rule.init(params)
    update = jax.jit(rule.update)
    for step in range(steps):
        params, opt, metrics = update(_arrays(step + 1), opt, params)
    return params, opt, metrics


def test_adamw_equals_optax_with_masks() -> None:
    found, opt, metrics = _train(_rule(), 6)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 3, 20, 1e-3)
    decays = {path: spec.weight_decay == 1.0 for path, spec in SPECS.items()}
    reference = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(schedule, 0.9, 0.95, weight_decay=0.1, mask=decays),
    )
    params = _arrays(0)
    state = reference.init(params)
    reference_update = jax.jit(reference.update)
    for step in range(6):
        grads = _arrays(step + 1)
        norm = _norm(grads)
        updates, state = reference_update(grads, state, params)
        scaled = {path: change * SPECS[path].lr_scale for path, change in updates.items()}
        params = optax.apply_updates(params, scaled)
    for path in SPECS:
        np.testing.assert_allclose(found[path], params[path], rtol=2e-5, atol=1e-7)
    assert float(metrics["gradient_norm"].value()) == pytest.approx(float(norm))
    assert float(metrics["learning_rate"].value()) == pytest.approx(float(schedule(5)))
    assert int(opt["adam/count"]) == int(opt["rate/count"]) == 6


def test_tracing_an_update_asks_the_schedule_and_the_optimizers_init_once() -> None:
    rule, asked = _rule(), {"schedule": 0, "init": 0}
    schedule, init = rule._schedule, rule._transform.init

    def counted(name: str, inner: Any) -> Any:
        def call(*args: Any) -> Any:
            asked[name] += 1
            return inner(*args)

        return call

    rule._schedule = counted("schedule", schedule)
    rule._transform = rule._transform._replace(init=counted("init", init))
    opt = rule.abstract(_arrays(0))
    assert {path: (x.shape, x.dtype) for path, x in rule.init(_arrays(0)).items()} == {
        path: (x.shape, x.dtype) for path, x in opt.items()
    }
    asked |= {"schedule": 0, "init": 0}
    jax.eval_shape(rule.update, _arrays(1), opt, _arrays(0))
    assert asked == {"schedule": 1, "init": 0}


def test_the_update_costs_no_more_than_optax() -> None:
    params = {f"layers[{i}].w": jnp.ones((64, 64)) for i in range(4)}
    specs = {path: ParamSpec((64, 64), ("embed", "mlp")) for path in params}
    rule = Learner.Config(schedule=Constant.Config(peak=1e-3)).build().update_rule(specs, 10)
    reference = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, 0.9, 0.95, weight_decay=0.1))

    def by_hand(grads: Any, state: Any, params: Any) -> Any:
        updates, state = reference.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def flops(function: Any, state: Any) -> float:
        compiled = jax.jit(function).lower(params, state, params).compile()
        return compiled.cost_analysis()["flops"]

    ours = flops(rule.update, rule.init(params))
    assert ours <= 1.01 * flops(by_hand, reference.init(params))


def test_state_is_flat_and_named_by_transform_and_path() -> None:
    params = _arrays(0)
    opt = _rule().init(params)
    moments = {f"adam/{m}/{path}" for m in ("mu", "nu") for path in SPECS}
    assert set(opt) == moments | {"adam/count", "rate/count"}
    assert opt["adam/mu/layers[0].up.weight"].shape == (16, 64)


def test_flat_state_round_trips_any_optax_chain() -> None:
    params = _arrays(0)
    chain = optax.chain(optax.clip(1.0), optax.adafactor(1e-3, min_dim_size_to_factor=8))
    state = chain.init(params)
    rebuilt = from_flat(state, to_flat(state))
    assert jax.tree.structure(rebuilt) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, rebuilt, state)


def test_state_of_another_optimizer_is_refused_by_path() -> None:
    params = _arrays(0)
    opt = _rule().init(params)
    opt["ema/mu"] = opt.pop("adam/count")
    with pytest.raises(OptimizerStateError, match=r"missing: adam/count\n  unexpected: ema/mu"):
        _rule().update(params, opt, params)


def test_clipping_scales_down_and_never_up() -> None:
    params = _arrays(0)
    plain = {"optimizer": SGD.Config(), "schedule": Constant.Config(peak=1.0)}
    for factor, expected in ((1e-3, 1.0), (1e3, None)):
        grads = {path: factor * grad for path, grad in _arrays(1).items()}
        norm = float(_norm(grads))
        after, _, _ = _rule(clip_norm=2.0, **plain).update(grads, _rule(**plain).init(params), params)
        scale = expected if expected is not None else 2.0 / norm
        np.testing.assert_allclose(
            after["embed.weight"], params["embed.weight"] - scale * grads["embed.weight"], rtol=1e-6
        )
    zero = {path: 0 * grad for path, grad in grads.items()}
    after, _, _ = _rule(**plain).update(zero, _rule(**plain).init(params), params)
    np.testing.assert_array_equal(after["embed.weight"], params["embed.weight"])


def test_a_nonfinite_update_is_dropped_whole_and_reported() -> None:
    rule = _rule(skip_nonfinite=True, schedule=Constant.Config(peak=1e-2))
    params = _arrays(0)
    opt = rule.init(params)
    grads = _arrays(1)
    grads["embed.weight"] = grads["embed.weight"].at[0, 0].set(jnp.nan)
    after, state, metrics = jax.jit(rule.update)(grads, opt, params)
    assert float(metrics["skipped_update"].value()) == 1.0
    jax.tree.map(np.testing.assert_array_equal, (after, state), (params, opt))
    after, state, metrics = jax.jit(rule.update)(_arrays(1), opt, params)
    assert float(metrics["skipped_update"].value()) == 0.0
    assert int(state["adam/count"]) == 1
    assert not np.array_equal(after["embed.weight"], params["embed.weight"])


def test_rules_freeze_and_scale_by_path() -> None:
    rules = (
        ParameterRule(where="layers[*].**", lr_scale=0.0),
        ParameterRule(where="**.norm.scale", frozen=True),
        ParameterRule(where="layers[0].up.weight", lr_scale=2.0, weight_decay=0.0),
    )
    rule = _rule(rules=rules, schedule=Constant.Config(peak=1e-2), clip_norm=None)
    params = _arrays(0)
    opt = rule.init(params)
    assert not any("norm.scale" in path for path in opt)
    after, _, metrics = rule.update(_arrays(1), opt, params)
    assert after["layers[0].norm.scale"] is params["layers[0].norm.scale"]
    # Adam's first update is the gradient's sign, so only rate and scale are left.
    moved = after["layers[0].up.weight"] - params["layers[0].up.weight"]
    np.testing.assert_allclose(np.abs(moved), 2e-2, rtol=1e-3)
    trained = {p: g for p, g in _arrays(1).items() if "norm" not in p}
    assert float(metrics["gradient_norm"].value()) == pytest.approx(float(_norm(trained)))


def test_rules_that_cannot_apply_are_refused() -> None:
    with pytest.raises(ParameterRuleError, match=r"no parameter matches 'embed\.weigth'; did you mean"):
        _rule(rules=(ParameterRule(where="embed.weigth"),))
    with pytest.raises(ParameterRuleError, match="freeze all 3 parameters"):
        _rule(rules=(ParameterRule(where="**", frozen=True),))


def test_moments_may_be_kept_in_bfloat16() -> None:
    opt = _rule(optimizer=AdamW.Config(first_moment_dtype="bfloat16")).init(_arrays(0))
    assert opt["adam/mu/embed.weight"].dtype == jnp.bfloat16
    assert opt["adam/nu/embed.weight"].dtype == jnp.float32


def test_momentum_sums_gradients() -> None:
    plain = {"schedule": Constant.Config(peak=1.0), "clip_norm": None}
    found, opt, _ = _train(_rule(optimizer=SGD.Config(momentum=0.5), **plain), 2)
    expected = _arrays(1)["embed.weight"] * 1.5 + _arrays(2)["embed.weight"]
    np.testing.assert_allclose(found["embed.weight"], _arrays(0)["embed.weight"] - expected, rtol=1e-5, atol=1e-6)
    assert "momentum/trace/embed.weight" in opt
