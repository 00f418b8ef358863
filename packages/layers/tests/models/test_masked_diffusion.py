"""Masked diffusion of text: the loss is the weighted bound, and the model sees both sides."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import Batch, Sequences
from kanawa.errors import ConfigError
from kanawa_layers.models.masked_diffusion import MaskedDiffusion
from kanawa_layers.modifiers.masked_diffusion import MaskedDiffusionLoss
from kanawa_layers.recipes.gemma3 import gemma3_1b
from kanawa_layers.recipes.llama import llama
from kanawa_layers.recipes.mamba2 import mamba2_tiny

VOCAB, MASK = 7, 7


@pytest.fixture(scope="module")
def model():
    cfg = llama(num_layers=1, input_dim=16, num_heads=2, num_kv_heads=1, hidden_dim=24, vocab_size=VOCAB, tied=False)
    cfg = MaskedDiffusionLoss.Config(mask_id=MASK).build()(cfg)
    built = cfg.build()
    return built, kn.initialize(built, jax.random.key(0))


def test_the_loss_is_the_weighted_sum_over_hidden_tokens_by_their_count(model):
    built, params = model
    tokens = np.random.default_rng(0).integers(0, VOCAB, (2, 6)).astype(np.int32)
    hidden = np.array([[1, 0, 0, 1, 0, 0], [1, 1, 1, 1, 1, 0]], bool)
    weights = (hidden * np.array([[6 / 2], [6 / 5]])).astype(np.float32)
    shown = np.where(hidden, MASK, tokens).astype(np.int32)
    batch = Batch(shown, tokens, None, None, weights)
    _, outputs = kn.functional(built)(params, {}, batch, key=jax.random.key(1), train=True)
    logits = np.asarray(kn.functional(built, "predict")(params, {}, shown)[0], np.float64)
    # By hand: the softmax over the whole vocabulary, the weights 1 / t of both rows, 12 tokens in all.
    nll = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, tokens[..., None], -1)[..., 0]
    expected = sum(nll[row][hidden[row]].sum() * 6 / hidden[row].sum() for row in range(2)) / 12
    loss = outputs.losses["loss.loss.cross_entropy"]
    np.testing.assert_allclose(float(loss.total / loss.weight), expected, rtol=1e-5)
    shares = outputs.metrics["loss.hidden"]
    assert float(shares.total / shares.weight) == pytest.approx(7 / 12)


def test_every_token_sees_both_sides_and_no_other_text(model):
    built, params = model
    decode = kn.functional(built, "decode")
    rows = Sequences(segment_ids=jnp.array([[1, 1, 1, 2, 2, 0]]))
    ids = jnp.array([[1, MASK, 3, 4, 5, 0]], jnp.int32)
    at = lambda x: np.asarray(decode(params, {}, x, rows, None)[0][0])[0, 1]  # noqa: E731
    assert np.abs(at(ids) - at(ids.at[0, 2].set(6))).max() > 1e-4, "the next token changes what is filled in"
    np.testing.assert_array_equal(at(ids), at(ids.at[0, 3].set(6)))


def test_the_modifier_makes_room_for_the_mask_and_widens_windows():
    cfg = MaskedDiffusionLoss.Config(mask_id=300_000).build()(gemma3_1b())
    assert cfg.vocab_size == 300_032 and cfg._target.hidden_token(cfg) == 300_000
    masks = {(type(n.mask).__qualname__, vars(n.mask).get("right")) for _, n in cfg.walk() if "mask" in n.fields()}
    assert masks == {("Window.Config", 511), ("Bidirectional.Config", None)}
    again = MaskedDiffusionLoss.Config(mask_id=5).build()(cfg)
    assert again.loss.mask_id == 5 and not isinstance(again.loss.loss, MaskedDiffusion.Config)


def test_a_recurrence_and_a_model_of_images_are_refused():
    with pytest.raises(ConfigError, match=r"Mamba2 sees earlier tokens only; take a model of attention"):
        MaskedDiffusionLoss.Config(mask_id=5).build()(mamba2_tiny())
    with pytest.raises(ConfigError, match=r"ImageClassifier.Config is no causal language model"):
        MaskedDiffusionLoss.Config(mask_id=5).build()(kn.component("models", "vit-tiny")())
