"""optax's own transformations in the learner's slot: same numbers, state by path, text and JSON both ways."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import optax
import pytest
from kanawa.arrays.optimizer_state import parameter_of, to_flat
from kanawa.arrays.spec import ParamSpec
from kanawa.config import digest, from_json, to_json, to_text
from kanawa.errors import ConfigError
from kanawa_runtime.learn.adamw import AdamW
from kanawa_runtime.learn.learner import Learner, ParameterRule
from kanawa_runtime.learn.schedules import WarmupCosine

SPECS = {
    "embed.weight": ParamSpec((8, 4), ("vocab", "embed")),
    "layers[0].norm.scale": ParamSpec((4,), ("embed",), weight_decay=0.0),
    "layers[0].up.weight": ParamSpec((4, 6), ("embed", "mlp"), lr_scale=0.5),
}
SCHEDULE = WarmupCosine.Config(peak=1e-2, warmup_steps=2)
ADAMW = {"b1": 0.9, "b2": 0.95, "weight_decay": 0.1}
CHAIN = kn.config_for(
    optax.chain, kn.config_for(optax.clip, 1.0), kn.config_for(optax.adamw, kn.FROM_PARENT, mask=kn.FROM_PARENT)
)


def arrays(seed):
    random = np.random.default_rng(seed)
    return {path: jnp.asarray(random.standard_normal(s.shape), jnp.float32) for path, s in SPECS.items()}


def trained(steps=4, **fields):
    rule = Learner.Config(schedule=SCHEDULE, **fields).build().update_rule(SPECS, 10)
    params, opt, metrics = arrays(0), rule.init(arrays(0)), {}
    for step in range(steps):
        params, opt, metrics = rule.update(arrays(step + 1), opt, params)
    return params, opt, metrics


def same(a, b):
    return all(np.allclose(a[path], b[path], rtol=1e-5, atol=1e-7) for path in SPECS)


def test_adamw_of_optax_is_ours():
    """Schedule, decay mask, rate scales and clipping all reach it."""
    theirs = kn.config_for(optax.adamw, learning_rate=kn.FROM_PARENT, mask=kn.FROM_PARENT, **ADAMW)
    params, opt, metrics = trained(optimizer=theirs)
    ours, _, expected = trained(optimizer=AdamW.Config(**ADAMW))
    assert same(params, ours)
    assert float(metrics["learning_rate"].value()) == float(expected["learning_rate"].value())


def test_a_rate_of_its_own_is_kept():
    params, _, metrics = trained(optimizer=kn.config_for(optax.sgd, 0.5), clip_norm=None, steps=1)
    step = {path: 0.5 * spec.lr_scale * arrays(1)[path] for path, spec in SPECS.items()}
    assert same(params, {path: arrays(0)[path] - step[path] for path in SPECS})
    assert "learning_rate" not in metrics, "the learner doesn't know it"


def test_a_schedule_of_optax_is_built():
    cosine = kn.config_for(optax.cosine_decay_schedule, init_value=0.5, decay_steps=10)
    params, _, _ = trained(optimizer=kn.config_for(optax.sgd, cosine), clip_norm=None, steps=1)
    assert same(params, trained(optimizer=kn.config_for(optax.sgd, 0.5), clip_norm=None, steps=1)[0])


def test_state_is_saved_by_the_parameters_path():
    _, opt, _ = trained(optimizer=CHAIN)
    assert {"1/0/mu/embed.weight", "1/0/nu/layers[0].norm.scale", "1/0/count"} <= opt.keys()
    followed = [path for path in opt if parameter_of(path) in SPECS]
    assert len(followed) == 2 * len(SPECS)
    assert all(opt[path].shape == SPECS[parameter_of(path)].shape for path in followed)


def test_training_goes_on_from_restored_state():
    rule = Learner.Config(schedule=SCHEDULE, optimizer=CHAIN).build().update_rule(SPECS, 10)
    params, opt, _ = trained(optimizer=CHAIN, steps=3)
    restored = {path: jnp.asarray(np.asarray(array)) for path, array in sorted(opt.items())}
    again, _, _ = jax.jit(rule.update)(arrays(4), restored, params)
    assert same(again, trained(optimizer=CHAIN, steps=4)[0])


def test_frozen_parameters_have_no_state():
    _, opt, _ = trained(optimizer=CHAIN, rules=(ParameterRule(where="embed.**", frozen=True),))
    assert not [path for path in opt if path.endswith("embed.weight")]


def test_config_text_json_and_digest():
    cfg = Learner.Config(optimizer=CHAIN)
    assert from_json(to_json(cfg)) == cfg
    assert digest(from_json(to_json(cfg))) == digest(cfg)
    text = to_text(cfg)
    assert "optimizer: optax:chain\n" in text
    assert "optimizer.args[1].learning_rate: FROM_PARENT\n" in text
    changed = cfg.clone().set_path("optimizer.args[0].max_delta", 2.0)
    assert digest(changed) != digest(cfg)


def test_what_is_no_transformation_is_refused():
    cfg = kn.config_for(optax.cosine_decay_schedule, init_value=1.0, decay_steps=3)
    with pytest.raises(ConfigError, match="cosine_decay_schedule returned function, expected an optax transformation"):
        trained(optimizer=cfg)


def test_a_modifier_reaches_it():
    cfg = Learner.Config(optimizer=CHAIN.clone())
    assert kn.replace(cfg, target=optax.clip, new=kn.config_for(optax.clip_by_global_norm, 1.0)) == [
        "optimizer.args[0]"
    ]
    state = to_flat(cfg.optimizer.build(learning_rate=0.1, mask=None).init(arrays(0)))
    assert "1/0/count" in state
