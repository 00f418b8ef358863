"""Heads: the logits a model predicts are those its loss is made of, scaled and capped."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import Batch, EncoderDecoderBatch
from kanawa.errors import ConfigError
from kanawa_layers.models.head import TiedHead, UntiedHead
from kanawa_layers.models.token_loss import CrossEntropy, SumOfLosses, TokenLoss
from kanawa_layers.recipes.bert import bert
from kanawa_layers.recipes.llama import llama
from kanawa_layers.recipes.t5 import t5


class Projecting(kn.Module):
    """Logits of its input."""

    class Config(kn.Module.Config):
        head: kn.Module.Config = UntiedHead.Config()

    def setup(self):
        self.add_child("head", self.config.head)

    def forward(self, x):
        return self.head.logits(x)


TOKENS = jax.random.randint(jax.random.key(1), (2, 9), 0, 50)


@pytest.mark.parametrize("kind", [TiedHead, UntiedHead])
def test_loss_and_logits_share_scale_and_cap(kind):
    cfg = llama(num_layers=1, input_dim=16, num_heads=2, num_kv_heads=1, hidden_dim=24, vocab_size=50)
    cfg.set(head=kind.Config(logit_scale=0.5, logit_cap=3.0))
    cfg.embedding.set(scale_by_sqrt_dim=True, scale=0.5, init_stddev=1.0)
    model = cfg.build()
    params = kn.initialize(model, jax.random.key(0))
    logits, _ = jax.jit(kn.functional(model, "predict"))(params, {}, TOKENS[:, :-1])
    assert 1.0 < np.abs(logits).max() < 3.0
    picked = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), np.asarray(TOKENS)[:, 1:, None], -1)
    _, outputs = jax.jit(kn.functional(model))(params, {}, Batch.of_tokens(TOKENS))
    assert float(outputs.total_loss()) == pytest.approx(-picked.mean(), abs=1e-5)


def test_an_engines_head_lies_the_other_way_round_and_says_the_same():
    head = UntiedHead.Config(input_dim=6, vocab_size=7, logit_scale=0.5, logit_cap=3.0).build()
    transposed = head.fused_config(head.config).build()
    rng = np.random.default_rng(0)
    # Two of a stack: leading axes stay where they are.
    params, x = {"kernel": rng.standard_normal((2, 6, 7), np.float32)}, rng.standard_normal((3, 1, 6), np.float32)
    given = head.fuse(params)
    assert kn.param_specs(transposed)["kernel"].shape == given["kernel"].shape[1:] == (7, 6)

    def logits(module, kernel):
        outer = Projecting.Config(head=module.config.clone()).build()
        return kn.functional(outer)({"head": {"kernel": kernel}}, {}, x)[0]

    np.testing.assert_allclose(logits(transposed, given["kernel"][1]), logits(head, params["kernel"][1]), rtol=1e-5)

    class Own(UntiedHead):
        class Config(UntiedHead.Config):
            pass

    # What a subclass makes of its kernel is its own.
    assert Own.fused_config(Own.Config()) is None


@pytest.mark.parametrize("purpose", ["train", "decode"])
def test_rows_are_those_of_the_cast_table_and_ids_past_it_show(purpose):
    from kanawa_layers.basic.embedding import Embedding

    module = Embedding.Config(vocab_size=4, output_dim=3).build()
    table = np.random.default_rng(0).standard_normal((4, 3), np.float32)
    with kn.use_plan(kn.ExecutionPlan(precision=kn.Precision(compute="bfloat16"), purpose=purpose)):
        rows, _ = kn.functional(module)({"weight": table}, {}, jnp.array([[2, 4]]))
    assert rows.dtype == jnp.bfloat16
    np.testing.assert_array_equal(rows[0, 0], table[2].astype(jnp.bfloat16))
    assert np.isnan(rows[0, 1].astype(np.float32)).all()


def test_cap_must_be_positive():
    with pytest.raises(ConfigError, match=r"logit_cap: expected float \(above 0, finite\)"):
        UntiedHead.Config(input_dim=4, vocab_size=5, logit_cap=0.0).build()


def test_embedding_scale_is_rounded_to_the_compute_dtype_first():
    from kanawa_layers.basic.embedding import Embedding

    module = Embedding.Config(vocab_size=4, output_dim=3, scale_by_sqrt_dim=True).build()
    params = {"weight": jnp.full((4, 3), 0.3)}
    with kn.use_plan(kn.ExecutionPlan(precision=kn.Precision(compute="bfloat16"))):
        actual, _ = kn.functional(module)(params, {}, jnp.zeros((1, 1), int))
    wanted = jnp.asarray(0.3, jnp.bfloat16) * jnp.asarray(3**0.5, jnp.bfloat16)
    np.testing.assert_array_equal(actual, jnp.full((1, 1, 3), wanted))


def test_a_sum_of_losses_adds_up():
    params = {"kernel": jnp.asarray(np.random.default_rng(0).standard_normal((4, 5), np.float32))}
    x, batch = jnp.ones((1, 3, 4)), Batch.of_tokens(jnp.array([[1, 2, 3, 4]]))

    class Holder(kn.Module):
        class Config(kn.Module.Config):
            head: UntiedHead.Config = UntiedHead.Config(input_dim=4, vocab_size=5)
            loss: kn.Module.Config = CrossEntropy.Config()

        def setup(self):
            self.add_child("head", self.config.head)
            self.add_child("loss", self.config.loss)

        def forward(self, x):
            self.loss(x, self.head, batch)

    def total(loss):
        module = Holder.Config(loss=loss).build(name="model")
        return kn.functional(module)({"head": params}, {}, x, train=True)[1].total_loss()

    terms = (CrossEntropy.Config(coefficient=0.25), CrossEntropy.Config(label_smoothing=0.5, coefficient=2.0))
    wanted = 0.25 * total(CrossEntropy.Config()) + 2.0 * total(CrossEntropy.Config(label_smoothing=0.5))
    np.testing.assert_allclose(total(SumOfLosses.Config(terms=terms)), wanted, rtol=1e-6)


class Surprise(TokenLoss):
    """A loss of someone's own, over all logits at once: the negative mean of the chosen tokens' logits."""

    class Config(TokenLoss.Config):
        pass

    def forward(self, x, head, batch):
        picked = jnp.take_along_axis(head.logits(x), batch.target_ids[..., None], -1)[..., 0]
        count = jnp.sum(batch.loss_weights)
        self.add_loss("surprise", -jnp.sum(picked * batch.loss_weights), count, self.config.coefficient)


BOTH = SumOfLosses.Config(terms=(CrossEntropy.Config(), Surprise.Config(coefficient=0.5)))
SIZES = {"num_layers": 1, "input_dim": 16, "num_heads": 2, "hidden_dim": 24, "vocab_size": 50}


def pairs():
    ids = TOKENS[:, :-1]
    return EncoderDecoderBatch(ids, None, None, ids, None, None, TOKENS[:, 1:], jnp.ones(ids.shape))


@pytest.mark.parametrize(
    ("cfg", "batch"),
    [
        (llama(**SIZES, num_kv_heads=1), Batch.of_tokens(TOKENS)),
        (bert(**SIZES, max_length=9), Batch(TOKENS, TOKENS, None, None, jnp.ones(TOKENS.shape))),
        (t5(**SIZES, num_buckets=8, max_distance=6), pairs()),
    ],
    ids=["decoder", "encoder", "encoder-decoder"],
)
def test_every_language_model_takes_losses_of_anyones_and_gives_them_its_logits(cfg, batch):
    cfg.set(loss=BOTH)
    model = cfg.build()
    params = jax.jit(lambda key: kn.initialize(model, key))(jax.random.key(0))

    def both(params):
        return kn.functional(model)(params, {}, batch, key=jax.random.key(1), train=True)[1].total_loss()

    given = (batch.input_ids, batch.decoder_input_ids) if isinstance(batch, EncoderDecoderBatch) else (batch.input_ids,)
    logits, _ = jax.jit(kn.functional(model, "predict"))(params, {}, *given)
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits) + 0.5 * logits, batch.target_ids[..., None], -1)
    total, grads = jax.jit(jax.value_and_grad(both))(params)
    np.testing.assert_allclose(total, -picked.mean(), rtol=1e-5)
    assert all(np.abs(g).max() > 0 for path, g in flatten_paths(grads).items() if path.startswith("embedding"))
