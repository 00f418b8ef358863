"""A model's own count of a row's FLOPs is that of the matmuls and convolutions in its traced forward pass."""

import math

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params


def traced_flops(jaxpr) -> float:
    """Returns the FLOPs of all matmuls and convolutions, those of a loop's body as often as it runs."""
    total = 0.0
    for equation in jaxpr.eqns:
        shapes = [v.aval.shape for v in equation.invars if hasattr(v.aval, "shape")]
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            total += 2.0 * equation.outvars[0].aval.size * math.prod(shapes[0][axis] for axis in contracted)
        elif name == "conv_general_dilated":
            out, into = params["dimension_numbers"].rhs_spec[:2]
            weight = math.prod(shapes[1]) // shapes[1][out]
            assert shapes[1][into] * params["feature_group_count"] == shapes[0][params["dimension_numbers"].lhs_spec[1]]
            total += 2.0 * equation.outvars[0].aval.size * weight
        times = params["length"] if name == "scan" else 1
        for inner in jaxprs_in_params(params):
            total += times * traced_flops(inner)
    return total


def zeros(rows, **shapes):
    """Returns arrays of zeros, `rows` of each: fp32 where the name says so, else int32."""
    floats = {"audio", "images", "loss_weights"}
    return {name: jnp.zeros((rows, *shape), "float32" if name in floats else "int32") for name, shape in shapes.items()}


SPEECH = {"audio": (32_000,), "audio_lengths": (), "target_ids": (20,), "loss_weights": (20,)}
TEXTS = {name: (64,) for name in ("input_ids", "decoder_input_ids", "target_ids", "loss_weights")}
PAIRS = {"images": (32, 32, 3), "input_ids": (48,), "segment_ids": (48,), "loss_weights": ()}
#: The spectrogram's matmuls are traced too, 6 % of a small model's; the reference computes attention's masked half.
CASES = {
    "conformer-tiny": SPEECH,
    "conformer-tiny-rnnt": SPEECH,
    "clip-tiny": PAIRS,
    "coca-tiny": PAIRS,
    "t5-tiny": TEXTS,
}


@pytest.mark.parametrize("name", CASES)
def test_a_rows_flops_are_those_that_are_traced(name):
    cfg, shapes = kn.component("models", name)(), CASES[name]
    model = cfg.build()
    key = jax.random.key(0)
    params, state = (jax.eval_shape(lambda of=of: of(model, key)) for of in (kn.initialize, kn.initial_state))
    batch_of = type(model).batch_of(cfg)
    fields = zeros(2, **shapes)
    batch = batch_of(**{field: fields.get(field) for field in batch_of._fields})
    run = kn.functional(model, "forward")
    traced = jax.make_jaxpr(lambda p, s, b: run(p, s, b, key=key, train=True)[1].losses)(params, state, batch)
    found = traced_flops(traced.jaxpr) / 2
    counted = model.flops_per_row(shapes)
    assert counted == pytest.approx(found, rel=0.07)
    assert np.isfinite(counted)
