"""The policy's objective against loops in NumPy, its gradient's sign, and what it refuses."""

import itertools

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import Batch, RolloutBatch
from kanawa.errors import ConfigError, ModuleError
from kanawa_layers.losses.policy import clipped_surrogate, k3_divergence, per_row, per_sequence, per_token
from kanawa_layers.models.policy_loss import PolicyLoss
from kanawa_layers.models.target_nll import target_nll
from kanawa_layers.modifiers.language_model import ChoosePolicyLoss
from kanawa_layers.recipes.llama import llama

DRAW = np.random.default_rng(0)
ROWS, LENGTH, VOCAB = 4, 6, 11


def rollouts(reference=True):
    ids = DRAW.integers(0, VOCAB, (2, ROWS, LENGTH)).astype(np.int32)
    weights = (np.arange(LENGTH) >= np.asarray([[2], [1], [4], [6]])).astype(np.float32)
    rest = DRAW.standard_normal((4, ROWS, LENGTH)).astype(np.float32)
    positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), ids[0].shape)
    near = rest[3] - 2.4 if reference else None
    return RolloutBatch(*ids, positions, positions * 0 + 1, weights, rest[0], rest[1] - 2.4, rest[2] - 2.4, near)


def model(**loss):
    cfg = llama(num_layers=1, input_dim=16, num_heads=2, num_kv_heads=1, hidden_dim=16, vocab_size=VOCAB, tied=True)
    built = cfg.set(loss=PolicyLoss.Config(**loss)).build()
    return built, jax.jit(lambda key: kn.initialize(built, key))(jax.random.key(0))


def logprobs_of(built, params, batch):
    predict = jax.jit(lambda p, ids: kn.functional(built, "predict")(p, {}, ids)[0])
    logits = np.asarray(predict(params, batch.input_ids), np.float64)
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return np.take_along_axis(logits, np.asarray(batch.target_ids)[..., None], -1)[..., 0]


def by_hand(batch, logprobs, low, high, kl, most, how):
    """The objective token by token, as the papers write it."""
    total = rows = tokens = 0.0
    for row in range(ROWS):
        mine, count = 0.0, batch.loss_weights[row].sum()
        for t in range(LENGTH):
            if not batch.loss_weights[row, t]:
                continue
            ratio, gain = np.exp(logprobs[row, t] - batch.old_logprobs[row, t]), batch.advantages[row, t]
            bound = min(max(ratio, 1 - low), 1 + high)
            weight = min(np.exp(batch.old_logprobs[row, t] - batch.sampled_logprobs[row, t]), most)
            gap = batch.reference_logprobs[row, t] - logprobs[row, t]
            mine += -weight * min(ratio * gain, bound * gain) + kl * (np.exp(gap) - gap - 1)
        total += mine / count if how is per_sequence and count else mine
        rows, tokens = rows + (count > 0), tokens + count
    return total / {per_sequence: rows, per_token: tokens, per_row: rows * LENGTH}[how]


@pytest.mark.parametrize("how", [per_sequence, per_token, per_row])
def test_the_objective_is_that_of_a_loop(how):
    sizes = {"clip_low": 0.1, "clip_high": 0.3, "kl": 0.7, "truncation": 1.5}
    built, params = model(aggregation=how, **sizes)
    batch = rollouts()
    outputs = jax.jit(lambda p, b: kn.functional(built)(p, {}, b, train=True)[1])(params, batch)
    logprobs = logprobs_of(built, params, batch)
    wanted = by_hand(batch, logprobs, 0.1, 0.3, 0.7, 1.5, how)
    np.testing.assert_allclose(outputs.total_loss(), wanted, rtol=1e-4)
    assert outputs.primary_loss() == "loss.policy"
    apart = np.abs(batch.old_logprobs - batch.sampled_logprobs)[batch.loss_weights > 0]
    assert outputs.metrics["loss.sampler_difference"].value() == pytest.approx(apart.mean(), rel=1e-5)
    assert outputs.metrics["loss.sampler_difference_most"].value() == pytest.approx(apart.max(), rel=1e-5)
    assert 0 < outputs.metrics["loss.clipped"].value() < 1


@pytest.mark.parametrize("field", ["old_logprobs", "reference_logprobs"])
def test_what_was_not_drawn_is_left_out_however_much_the_policy_changed_there(field):
    built, params = model(kl=0.7)
    batch = rollouts()
    far = np.where(batch.loss_weights > 0, getattr(batch, field), 200.0 if field == "reference_logprobs" else -200.0)
    loss = lambda p, b: kn.functional(built)(p, {}, b, train=True)[1].total_loss()  # noqa: E731
    step = jax.jit(jax.value_and_grad(loss))
    wanted, got = (step(params, b) for b in (batch, batch._replace(**{field: far})))
    jax.tree.map(np.testing.assert_array_equal, got, wanted)


def test_a_step_down_makes_rewarded_tokens_likelier_and_others_not():
    built, params = model()
    batch = rollouts(reference=False)._replace(old_logprobs=None)
    gradient = jax.jit(jax.grad(lambda p, b: kn.functional(built)(p, {}, b, train=True)[1].total_loss()))
    before = logprobs_of(built, params, batch)
    after = jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradient(params, batch))
    gained = (logprobs_of(built, after, batch) - before) * batch.loss_weights * batch.advantages
    # To first order, what is gained is the squared norm of the gradient.
    assert gained.sum() > 0
    opposite = batch._replace(advantages=-batch.advantages)
    there, back = (gradient(params, b) for b in (batch, opposite))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, -y, atol=1e-6), there, back)


@pytest.mark.parametrize(("gain", "ratio", "moves"), [(1, 1.5, 0), (1, 0.5, 1), (-1, 0.5, 0), (-1, 1.5, 1)])
def test_beyond_the_clip_only_the_way_back_has_a_gradient(gain, ratio, moves):
    new = jnp.log(jnp.asarray(ratio))
    value = lambda x: clipped_surrogate(x, jnp.zeros(()), jnp.asarray(float(gain)), 0.2, 0.2)[0]  # noqa: E731
    assert jax.grad(value)(new) == pytest.approx(-gain * ratio * moves)
    assert clipped_surrogate(new, jnp.zeros(()), jnp.asarray(float(gain)), 0.2, 0.2)[1] == 1 - moves


def test_k3_is_never_negative_and_on_average_the_divergence():
    p, q = (np.exp(x) / np.exp(x).sum() for x in DRAW.standard_normal((2, 7)))
    each = np.asarray(k3_divergence(jnp.log(p), jnp.log(q)))
    assert (each >= 0).all()
    assert (p * each).sum() == pytest.approx((p * np.log(p / q)).sum(), rel=1e-4)


@pytest.mark.parametrize(("tied", "cap"), [*itertools.product([True, False], [None, 2.0])])
def test_losses_of_single_tokens_and_their_gradients(tied, cap):
    hidden, weight = jnp.asarray(DRAW.standard_normal((2, 3, 8))), jnp.asarray(DRAW.standard_normal((VOCAB, 8)))
    weight = weight if tied else weight.T
    targets, pull = DRAW.integers(0, VOCAB, (2, 3)), jnp.asarray(DRAW.standard_normal((2, 3)))

    def plain(h, w):
        logits = h @ (w.T if tied else w)
        logits = logits if cap is None else cap * jnp.tanh(logits / cap)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)[..., 0]

    ours = lambda h, w: target_nll(h, w, targets, tied, cap)  # noqa: E731
    np.testing.assert_allclose(ours(hidden, weight), plain(hidden, weight), rtol=1e-5)
    for mine, wanted in zip(
        *(jax.jit(jax.grad(lambda h, w, f=f: jnp.sum(pull * f(h, w)), (0, 1)))(hidden, weight) for f in (ours, plain)),
        strict=True,
    ):
        np.testing.assert_allclose(mine, wanted, atol=1e-5)


def test_what_is_no_rollout_or_has_no_reference_is_refused():
    built, params = model(kl=0.1)
    plain = Batch(*rollouts()[:5])
    with pytest.raises(ModuleError, match=r"learns from its own rollouts, but this batch is a Batch; .* grpo:reward"):
        kn.functional(built)(params, {}, plain, train=True)
    with pytest.raises(ModuleError, match=r"kl is 0.1, but the batch has no reference; set rollouts.reference=true"):
        kn.functional(built)(params, {}, rollouts(reference=False), train=True)
    outputs = kn.functional(built)(params, {}, plain, train=False, emit=("**.logprobs",))[1]
    (emitted,) = outputs.emitted.values()
    wanted = logprobs_of(built, params, plain)
    np.testing.assert_allclose(emitted, wanted, rtol=1e-4)
    mean = -(wanted * plain.loss_weights).sum() / plain.loss_weights.sum()
    assert outputs.total_loss() == pytest.approx(mean, rel=1e-5)


class Experiment(kn.Config):
    model: kn.Module.Config | None = None


def test_the_modifier_keeps_the_rest_and_needs_a_slot():
    cfg = llama(num_layers=1, input_dim=16, num_heads=2, num_kv_heads=1, hidden_dim=16, vocab_size=VOCAB)
    changed = ChoosePolicyLoss.Config(clip_high=0.28, dr=True).build()(Experiment(model=cfg))
    assert (changed.model.loss.clip_high, changed.model.loss.aggregation) == (0.28, per_row)
    with pytest.raises(ConfigError, match="TokenLoss"):
        ChoosePolicyLoss.Config().build()(Experiment())


@pytest.mark.parametrize("how", [per_sequence, per_token])
def test_packed_rollouts_have_the_loss_and_gradients_of_rows_of_their_own(how):
    lengths, batch = (5, 3, 6, 4), rollouts()
    there = np.arange(LENGTH) < np.asarray(lengths)[:, None]
    weights = (np.arange(LENGTH) >= 1) * there
    batch = batch._replace(segment_ids=there.astype(np.int32), loss_weights=weights.astype(np.float32))
    # Two rows of twice the length: rollouts 0 and 2, then 3 and 1.
    begins, width = np.asarray([0, 16, 5, 12]), 2 * LENGTH
    places = np.where(there, begins[:, None] + np.arange(LENGTH), -1).astype(np.int32)

    def packed(values):
        flat = np.zeros(2 * width, values.dtype)
        flat[places[there]] = values[there]
        return flat.reshape(2, width)

    fields = {name: packed(np.asarray(x)) for name, x in batch._asdict().items() if x is not None}
    numbers = np.broadcast_to(np.asarray([[1], [2], [2], [1]], np.int32), there.shape)
    together = RolloutBatch(**fields)._replace(segment_ids=packed(numbers), places=places)
    built, params = model(aggregation=how, kl=0.3)

    def loss(params, batch):
        return kn.functional(built)(params, {}, batch, train=True)[1].total_loss()

    one, other = (jax.jit(jax.value_and_grad(loss))(params, each) for each in (batch, together))
    np.testing.assert_allclose(one[0], other[0], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), one[1], other[1])
