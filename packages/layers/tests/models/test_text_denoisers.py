"""Denoisers that read texts: what they see of a text, videos padded for kernels, and FLOPs against their parameters."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import ImageTextBatch, TextLatentsBatch
from kanawa.module import count_parameters
from kanawa_layers.diffusion.text_encoder import TextStates
from kanawa_layers.recipes.sd3 import mmdit_tiny, sd3
from kanawa_layers.recipes.wan import wan21_13b, wan21_14b, wan_tiny

DRAW = np.random.default_rng(0).standard_normal


def drawn(cfg, seed=0):
    """Returns a model with every parameter and stored array; those that begin as zero are drawn."""
    model = cfg.build()
    params = kn.initialize(model, jax.random.key(seed))
    leaves, tree = jax.tree.flatten(params)
    leaves = [x if np.any(x) else 0.2 * DRAW(x.shape, np.float32) for x in leaves]
    return model, jax.tree.unflatten(tree, leaves), kn.initial_state(model, jax.random.key(0))


@pytest.fixture(scope="module")
def captions():
    cfg = mmdit_tiny(vocab_size=40, text_length=6)
    return drawn(cfg)


def test_a_reader_sees_its_text_and_no_padding(captions):
    model, params, state = captions
    read = jax.jit(lambda ids: kn.functional(model.encoder)(params["encoder"], {}, ids)[0])
    by = jax.jit(lambda wish: kn.functional(model, "predict")(params, state, x, times, wish)[0])
    predict = lambda ids: by(read(ids))  # noqa: E731
    x, times = jnp.asarray(DRAW((2, 16, 16, 3), np.float32)), jnp.array([10.0, 900.0])
    ids = jnp.array([[1, 5, 6, 2, -1, -1], [1, 7, 2, -1, -1, -1]])
    out = predict(ids)
    assert out.shape == (2, 16, 16, 3) and out.dtype == jnp.float32
    assert np.abs(out - predict(ids.at[0, 1].set(9)))[0].max() > 1e-4, "another word"
    np.testing.assert_array_equal(out[1], predict(ids.at[0, 1].set(9))[1])
    made = type(model).made_by(model.config)
    assert (made.shape, made.prompt_length, made.is_latent) == ((16, 16, 3), 6, False)


@pytest.mark.nightly
def test_pictures_are_made_from_ids_alone_and_rows_are_their_own(captions):
    model, params, state = captions
    make = lambda ids, seeds: kn.functional(model, "make_pictures")(  # noqa: E731
        params, state, ids, jnp.asarray(seeds, jnp.uint32), jnp.full(len(seeds), 2.0)
    )[0]
    ids = jnp.array([[1, 5, 6, 2, -1, -1], [1, 7, 2, -1, -1, -1]])
    both = make(ids, [3, 4])
    assert both.shape == (2, 16, 16, 3) and both.dtype == jnp.uint8
    assert np.abs(np.asarray(make(ids[1:], [4])[0], int) - np.asarray(both[1], int)).max() <= 1


@pytest.mark.nightly
def test_a_picture_s_loss_is_learned_with_its_text(captions):
    model, _, state = captions
    params = kn.initialize(model, jax.random.key(0))
    ids = jnp.array([[1, 5, 2, 0, 0, 0], [1, 7, 2, 0, 0, 0]])
    pictures = jnp.stack([jnp.zeros((16, 16, 3)), jnp.ones((16, 16, 3))])
    batch = ImageTextBatch(pictures, ids, (ids > 0).astype(jnp.int32), jnp.ones(2))

    @jax.jit
    def step(p, key):
        loss = lambda q: kn.functional(model)(q, state, batch, key=key, train=True)[1].total_loss()  # noqa: E731
        value, gradients = jax.value_and_grad(loss)(p)
        return jax.tree.map(lambda x, g: x - 0.02 * g, p, gradients), value

    losses = []
    for number in range(20):
        params, value = step(params, jax.random.key(number))
        losses.append(float(value))
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5]), losses


def test_videos_padded_for_kernels_are_what_they_are_without_padding():
    model, params, state = drawn(wan_tiny())
    padded = wan_tiny()
    padded.denoiser.set(token_multiple=48)
    x, states = jnp.asarray(DRAW((2, 4, 8, 8, 4), np.float32)), jnp.asarray(DRAW((2, 8, 16), np.float32))
    times = jnp.array([10.0, 900.0])
    outs = [
        jax.jit(lambda x, s, m=m: kn.functional(m, "predict")(params, state, x, times, TextStates(s, None))[0])(
            x, states
        )
        for m in (model, padded.build())
    ]
    assert np.abs(outs[0]).max() > 0.1
    np.testing.assert_allclose(*outs, atol=2e-5)
    batch = TextLatentsBatch(x, states, None, jnp.ones(2))
    out = kn.functional(padded.build())(params, state, batch, key=jax.random.key(1), train=True)[1]
    assert np.isfinite(float(out.total_loss()))


@pytest.mark.parametrize(
    ("make", "tokens", "texts"),
    [
        (lambda: sd3(num_layers=2, num_heads=2, head_dim=8, image_size=8, text_dim=6, pooled_dim=4, text_length=5,
                     num_channels=4, max_size=4), 16, 5),
        (wan_tiny, 64, 8),
    ],
)  # fmt: skip
def test_flops_are_two_a_weight_and_token_and_what_attention_adds(make, tokens, texts):
    cfg = make()
    model = cfg.build()
    heads = 16 if tokens == 16 else 48
    once = every = read = 0
    for path, spec in kn.arrays.tree.flatten_paths(kn.param_specs(model)).items():
        if not path.endswith(("weight", "kernel")) or "norm" in path.rsplit(".", 2)[-2]:
            continue
        if any(part in path for part in ("modulation", "time", "pooled")):
            once += spec.size
        elif "text" in path or "context" in path or "cross_attention.key" in path or "cross_attention.value" in path:
            read += spec.size
        else:
            every += spec.size
    layers = 2
    seen = (tokens + texts) ** 2 if tokens == 16 else tokens**2 + tokens * texts
    expected = 2 * (every * tokens + read * texts + once) + 4 * heads * layers * seen
    assert model.flops_per_row({}) == pytest.approx(expected, rel=0.002)


def test_sizes_of_wan_are_the_published_ones():
    sizes = ((wan21_13b(), 1.42), (wan21_14b(), 14.29))
    for cfg, billions in sizes:
        assert count_parameters(cfg.build()).total == pytest.approx(billions * 1e9, rel=0.005)
