"""Losses of preferences against loops in NumPy over single sequences, unpacked, and what they refuse."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import Batch, PreferenceBatch, companions_of, without_companions
from kanawa.errors import ModuleError
from kanawa_layers.losses import preference
from kanawa_layers.models.preference_loss import DPO, KTO, ORPO, SimPO
from kanawa_layers.models.reference import AdapterOff, FrozenModel, TokenLogprobs
from kanawa_layers.models.reward import RewardLoss
from kanawa_layers.modifiers.preferences import DPOLoss, RewardModelLoss
from kanawa_layers.modifiers.weights import LoRAModifier
from kanawa_layers.recipes.llama import llama

VOCAB, LENGTH, PAIRS = 13, 40, 2
#: Prompt, and the two completions; the second row has one pair only.
ROWS = [
    [([1, 2, 3], [4, 5], [6, 7, 8]), ([9, 1], [2, 2, 2, 5], [3])],
    [([5, 4, 3, 2], [1, 10, 11], [12, 1])],
]


def batch_of(rows, labels=None, reference=None, *, in_halves=False):
    arrays = {name: np.zeros((len(rows), LENGTH), np.int32) for name in ("ids", "targets", "positions", "segments")}
    weights = np.zeros((len(rows), LENGTH), np.float32)
    there = np.zeros((len(rows), PAIRS), np.float32)
    for r, pairs in enumerate(rows):
        ends = [0, LENGTH // 2] if in_halves else [0]
        for k, (prompt, *both) in enumerate(pairs):
            there[r, k] = 1.0 if labels is None else labels[r][k]
            for half, completion in enumerate(both):
                # The last token is an input as well, whose target weighs nothing: a reward model reads it.
                tokens = [*prompt, *completion, 0]
                count = len(tokens) - 1
                at = ends[half % len(ends)]
                here = slice(at, at + count)
                arrays["ids"][r, here], arrays["targets"][r, here] = tokens[:-1], tokens[1:]
                arrays["positions"][r, here] = np.arange(count)
                arrays["segments"][r, here] = 2 * k + half + 1
                weights[r, at + len(prompt) - 1 : at + count - 1] = 1.0
                ends[half % len(ends)] += count
    return PreferenceBatch(*arrays.values(), weights, there, reference)


def model(loss=None, modify=None):
    cfg = llama(num_layers=2, input_dim=16, num_heads=2, num_kv_heads=1, hidden_dim=24, vocab_size=VOCAB)
    if loss is not None:
        cfg.set(loss=loss)
    for modifier in modify or ():
        cfg = modifier.build()(cfg)
    built = cfg.build()
    return built, jax.jit(lambda key: kn.initialize(built, key))(jax.random.key(0))


def sums(built, params, rows):
    """Log-probabilities and lengths of each completion, each a row of its own, float64."""
    each = [(prompt, completion) for pairs in rows for prompt, *both in pairs for completion in both]
    tokens = np.zeros((len(each), max(len(prompt) + len(completion) for prompt, completion in each)), np.int32)
    for row, (prompt, completion) in zip(tokens, each, strict=True):
        row[: len(prompt) + len(completion)] = [*prompt, *completion]
    # What pads a row comes after its end, which attention to earlier tokens never sees.
    logits = np.asarray(jax.jit(lambda p: kn.functional(built, "predict")(p, {}, tokens)[0])(params), np.float64)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    out = []
    for row, ids, (prompt, completion) in zip(logits, tokens, each, strict=True):
        places = range(len(prompt) - 1, len(prompt) + len(completion) - 1)
        out.append((sum(row[t, ids[t + 1]] for t in places), len(completion)))
    return np.asarray(out).reshape(-1, 2, 2)


def outputs(built, params, batch, train=True):
    return jax.jit(lambda p, b: kn.functional(built)(p, {}, b, train=train)[1])(params, batch)


def log_sigmoid(x):
    return -np.log1p(np.exp(-x))


REFERENCE = -np.abs(np.random.default_rng(3).standard_normal((2, 2 * PAIRS))).astype(np.float32) * 5
#: The pairs that there are, in the order of `sums`.
FLAT = REFERENCE.reshape(2, PAIRS, 2)[[0, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("objective", "smoothing"), [("sigmoid", 0.0), ("sigmoid", 0.1), ("hinge", 0.0), ("squared", 0.0)]
)
def test_dpo_is_that_of_a_loop_over_single_sequences(objective, smoothing):
    loss = DPO.Config(beta=0.3, objective=getattr(preference, objective), label_smoothing=smoothing)
    built, params = model(loss)
    got = outputs(built, params, batch_of(ROWS, reference=REFERENCE))
    ratios = sums(built, params, ROWS)[..., 0] - FLAT
    h = ratios[:, 0] - ratios[:, 1]
    each = {
        "sigmoid": -(1 - smoothing) * log_sigmoid(0.3 * h) - smoothing * log_sigmoid(-0.3 * h),
        "hinge": np.maximum(0, 1 - 0.3 * h),
        "squared": (h - 1 / 0.6) ** 2,
    }[objective]
    assert float(got.total_loss()) == pytest.approx(each.mean(), rel=1e-5)
    assert got.primary_loss() == "loss.dpo"
    assert got.metrics["loss.margin"].value() == pytest.approx(0.3 * h.mean(), rel=1e-4)
    assert got.metrics["loss.accuracy"].value() == pytest.approx((h > 0).mean())
    assert got.metrics["loss.chosen_logprob"].value() == pytest.approx(
        sums(built, params, ROWS)[:, 0, 0].mean(), rel=1e-5
    )


def test_simpo_and_orpo_are_those_of_loops():
    built, params = model(SimPO.Config(beta=2.0, target=0.7))
    both = sums(built, params, ROWS)
    mean = both[..., 0] / both[..., 1]
    wanted = -log_sigmoid(2.0 * (mean[:, 0] - mean[:, 1]) - 0.7).mean()
    assert float(outputs(built, params, batch_of(ROWS)).total_loss()) == pytest.approx(wanted, rel=1e-5)
    built, params = model(ORPO.Config(beta=0.4))
    odds = mean - np.log(1 - np.exp(mean))
    wanted = (-mean[:, 0] - 0.4 * log_sigmoid(odds[:, 0] - odds[:, 1])).mean()
    assert float(outputs(built, params, batch_of(ROWS)).total_loss()) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("shift", [-4.0, 4.0])
def test_kto_is_that_of_a_loop_and_its_divergence_is_never_negative(shift):
    built, params = model(KTO.Config(beta=0.2, good_weight=1.5, bad_weight=0.5))
    labels = [[1.0, -1.0], [-1.0, 0.0]]
    batch = batch_of(ROWS, labels, REFERENCE + shift, in_halves=True)
    got = outputs(built, params, batch)
    ratios = sums(built, params, ROWS)[..., 0] - FLAT - shift
    z = max(ratios[:, 1].mean(), 0.0)
    signs = np.asarray([1.0, -1.0, -1.0])
    value = 1 / (1 + np.exp(-0.2 * signs * (ratios[:, 0] - z)))
    each = np.where(signs > 0, 1.5, 0.5) * (1 - value)
    assert float(got.total_loss()) == pytest.approx(each.mean(), rel=1e-5)
    assert got.metrics["loss.divergence"].value() == pytest.approx(z, rel=1e-4)
    assert got.metrics["loss.chosen_reward"].value() == pytest.approx(0.2 * ratios[0, 0], rel=1e-4)
    # What isn't trained on has the same numbers.
    held_out = outputs(built, params, batch, train=False)
    assert float(held_out.total_loss()) == pytest.approx(float(got.total_loss()), rel=1e-6)


def test_kto_computes_mismatched_completions_without_gradients():
    built, params = model(
        KTO.Config(beta=0.2, reference=FrozenModel.Config(model=model(TokenLogprobs.Config())[0].config))
    )
    batch = batch_of(ROWS, [[1.0, -1.0], [-1.0, 0.0]], in_halves=True)

    def loss(params, whole):
        # Held-out rows are computed whole, so that their gradients pass through both halves as far as the loss has any.
        return outputs(built, params, batch, train=not whole).total_loss()

    step = jax.jit(jax.grad(loss), static_argnums=1)
    grads = [step(params, whole) for whole in (False, True)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *grads)
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(grads[0])) > 1e-3
    flops = [step.lower(params, whole).compile().cost_analysis()["flops"] for whole in (False, True)]
    # Of forward passes with and without a backward one, twice as large: 6 passes in place of 8, at most.
    assert flops[0] < 0.85 * flops[1]


def test_a_reward_is_the_number_at_a_completions_last_token():
    built, params = model(modify=[RewardModelLoss.Config(centre=0.1)])
    params["head"]["kernel"] = jax.random.normal(jax.random.key(1), params["head"]["kernel"].shape)
    rewards = np.asarray(
        [
            kn.functional(built, "predict")(params, {}, np.asarray([[*prompt, *completion]]))[0][0, -1, 0]
            for pairs in ROWS for prompt, *both in pairs for completion in both
        ],
        np.float64,
    ).reshape(-1, 2)  # fmt: skip
    got = outputs(built, params, batch_of(ROWS))
    loss, centre = -log_sigmoid(rewards[:, 0] - rewards[:, 1]).mean(), (rewards.sum(1) ** 2).mean()
    assert float(got.total_loss()) == pytest.approx(loss + 0.1 * centre, rel=1e-4)
    assert got.metrics["loss.accuracy"].value() == pytest.approx((rewards[:, 0] > rewards[:, 1]).mean())


def test_without_adapters_the_reference_is_the_base_model_and_no_gradient_reaches_it():
    built, params = model(modify=[LoRAModifier.Config(rank=2), DPOLoss.Config(beta=0.5)])
    assert isinstance(built.loss.reference, AdapterOff)
    batch = batch_of(ROWS)
    # Adapters begin at zero, where the policy is its reference.
    assert float(outputs(built, params, batch).total_loss()) == pytest.approx(np.log(2), rel=1e-6)
    moved = jax.tree_util.tree_map_with_path(
        lambda path, x: x + 0.3 if "lora_b" in jax.tree_util.keystr(path) else x, params
    )
    base, _ = model()
    ratios = sums(built, moved, ROWS)[..., 0] - sums(base, params, ROWS)[..., 0]
    wanted = -log_sigmoid(0.5 * (ratios[:, 0] - ratios[:, 1])).mean()
    assert float(outputs(built, moved, batch).total_loss()) == pytest.approx(wanted, rel=1e-4)
    # A constant reference gives the same gradient.
    flat = np.zeros((2, 2 * PAIRS), np.float32).reshape(2, PAIRS, 2)
    flat[[0, 0, 1], [0, 1, 0]] = sums(base, params, ROWS)[..., 0]
    grads = [
        jax.jit(jax.grad(lambda p, b=b: outputs(built, p, b).total_loss()))(moved)
        for b in (batch, batch._replace(reference_logprobs=jnp.asarray(flat.reshape(2, -1))))
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *grads)


def test_a_frozen_copy_is_a_child_that_is_never_trained_and_goes_with_training():
    built, params = model(modify=[DPOLoss.Config()])
    (path,) = companions_of(built)
    assert path == "loss.reference"
    specs = jax.tree.leaves(kn.param_specs(built.children["loss"]), is_leaf=lambda x: hasattr(x, "trainable"))
    assert specs
    assert not any(spec.trainable for spec in specs)
    own = {name: params[name] for name in ("embedding", "stack", "norm", "head")}
    same = {**own, "loss": {"reference": {"model": own}}}
    assert float(outputs(built, same, batch_of(ROWS)).total_loss()) == pytest.approx(np.log(2), rel=1e-6)
    assert not companions_of(without_companions(built.config).build())


def test_lora_after_a_frozen_reference_leaves_it_alone():
    built, _ = model(modify=[DPOLoss.Config(reference="frozen"), LoRAModifier.Config(rank=2)])
    paths = [path for path, node in built.config.walk() if path.endswith(".adapter")]
    assert paths
    assert not any(path.startswith("loss.") for path in paths)


def test_what_has_no_pairs_or_no_reference_is_refused():
    built, params = model(DPO.Config())
    plain = Batch(*batch_of(ROWS)[:5])
    with pytest.raises(ModuleError, match="DPO learns from pairs, but this batch is a Batch"):
        outputs(built, params, plain)
    assert outputs(built, params, plain, train=False).primary_loss() == "loss.cross_entropy"
    with pytest.raises(ModuleError, match="has no reference, and the batch brings no reference_logprobs"):
        outputs(built, params, batch_of(ROWS))
    with pytest.raises(ModuleError, match="the model has no adapter, so without them it would be the policy itself"):
        outputs(*model(DPO.Config(reference=AdapterOff.Config())), batch_of(ROWS))
    built, params = model(RewardLoss.Config())
    with pytest.raises(ModuleError, match="a reward model is trained and evaluated on pairs"):
        outputs(built, params, plain)
    assert FrozenModel.Config(model=model(TokenLogprobs.Config())[0].config).source == ""
