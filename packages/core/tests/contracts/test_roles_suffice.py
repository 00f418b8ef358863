"""The roles alone are enough for a language model that trains, decodes from a cache and fits the trainer's contracts.

A running sum over earlier tokens stands for attention: its right answer is known, and so is its cache.
"""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import (
    Batch,
    Block,
    Cache,
    CacheView,
    CausalLM,
    Environment,
    FeedForward,
    GradientStrategy,
    ModelLoss,
    Norm,
    Program,
    SequenceMixer,
    Sequences,
    Stack,
    Workload,
    token_of_each_row,
)
from kanawa.module import unstack

WIDTH, VOCAB, LAYERS, LENGTH = 4, 11, 3, 6


class Sums(Cache):
    """Keeps the values seen so far; [rows, length, 1, width]."""

    @kn.nowrap
    def spec(self, rows, length, dtype):
        shape = (rows, length, self.config.num_kv_heads, self.config.key_dim)
        return {"k": kn.ParamSpec(shape, ("batch", "kv_length", "kv_heads", "head_dim"), dtype, kn.zeros, (), ())}

    def extend(self, state, k, v, sequences):
        held = jax.lax.dynamic_update_slice_in_dim(state["k"], k, sequences.lengths, axis=1)
        return CacheView({"k": held}, held, None)


class RunningSum(SequenceMixer):
    class Config(SequenceMixer.Config):
        cache: Cache.Config = Sums.Config()

    def setup(self):
        width = self.config.input_dim
        self.add_param("weight", (width, width), axes=("embed", "embed"))
        self.add_child("cache", self.config.cache, num_kv_heads=1, key_dim=width, value_dim=0, reach=None)

    def forward(self, x, sequences, cache=None):
        k = (x @ self.param("weight"))[:, :, None]
        keys, state = k, None
        if cache is not None:
            view = self.cache.extend(cache, k, None, sequences)
            keys, state = view.k, view.state
        at = sequences.token_positions(x.shape[1])
        before = jnp.arange(keys.shape[1])[None, None] <= at[..., None]
        mixed = jnp.einsum("ts,bskd->btd", before[0].astype(x.dtype), keys)
        return 0.1 * mixed, state

    @kn.nowrap
    def cache_spec(self, rows, length, dtype):
        return self.cache.spec(rows, length, dtype)


class Half(Norm):
    def forward(self, x):
        return x * 0.5


class Square(FeedForward):
    def setup(self):
        self.add_param("up", (self.config.input_dim, self.config.hidden_dim), axes=("embed", "mlp"))

    def forward(self, x, sequences):
        return jnp.square(x @ self.param("up")) @ self.param("up").T


class Residual(Block):
    class Config(Block.Config):
        mixer: SequenceMixer.Config = RunningSum.Config()
        feed_forward: FeedForward.Config = Square.Config(hidden_dim=8)
        norm: Norm.Config = Half.Config()

    def setup(self):
        for name in ("mixer", "feed_forward", "norm"):
            self.add_child(name, getattr(self.config, name), input_dim=self.config.input_dim)

    def forward(self, x, sequences, cache=None):
        y, cache = self.mixer(self.norm(x), sequences, cache)
        return x + y + self.feed_forward(x, sequences), cache

    @kn.nowrap
    def cache_spec(self, rows, length, dtype):
        return self.mixer.cache_spec(rows, length, dtype)


class Layers(Stack):
    class Config(Stack.Config):
        layer: Block.Config = Residual.Config()

    def setup(self):
        cfg = self.config
        self.add_child("layer", cfg.layer, stacked=cfg.num_layers, input_dim=cfg.input_dim)

    def forward(self, x, sequences, caches=None):
        def body(carry, cache):
            return self.layer(carry, sequences, cache)

        return kn.scan(body, x, caches, over="layer", unrolled=caches is not None)

    @kn.nowrap
    def cache_spec(self, rows, length, dtype):
        one = self.layer.cache_spec(rows, length, dtype)
        return {name: spec.stacked(self.config.num_layers) for name, spec in one.items()}

    @kn.nowrap
    def unstacked(self, params):
        return {"layer": unstack(params["layer"], self.config.num_layers)}


class Tiny(CausalLM):
    class Config(CausalLM.Config):
        stack: Stack.Config = Layers.Config(num_layers=LAYERS)

    def setup(self):
        cfg = self.config
        self.add_param("table", (cfg.vocab_size, cfg.input_dim), axes=("vocab", "embed"))
        self.add_child("stack", cfg.stack, input_dim=cfg.input_dim)

    def embed(self, input_ids, sequences):
        return self.param("table")[input_ids]

    def logits(self, x):
        return x @ self.param("table").T

    def head_and_loss(self, x, batch):
        chosen = jnp.take_along_axis(jax.nn.log_softmax(self.logits(x)), batch.target_ids[..., None], -1)[..., 0]
        self.add_loss("nll", -jnp.sum(chosen * batch.loss_weights), jnp.sum(batch.loss_weights))

    def forward(self, batch):
        sequences = Sequences()
        x, _ = self.stack(self.embed(batch.input_ids, sequences), sequences)
        self.head_and_loss(x, batch)

    def decode(self, input_ids, sequences, caches, last=None):
        x, caches = self.stack(self.embed(input_ids, sequences), sequences, caches)
        return self.logits(token_of_each_row(x, last)), caches

    @kn.nowrap
    def cache_spec(self, rows, length, dtype):
        return self.stack.cache_spec(rows, length, dtype)

    @kn.nowrap
    def unstacked(self, params):
        return {**params, "stack": self.stack.unstacked(params["stack"])}


CONFIG = Tiny.Config(vocab_size=VOCAB, input_dim=WIDTH)
TOKENS = jax.random.randint(jax.random.key(3), (4, LENGTH + 1), 0, VOCAB)


@pytest.fixture(scope="module")
def model():
    return CONFIG.build()


@pytest.fixture(scope="module")
def params(model):
    return kn.initialize(model, jax.random.key(0))


def empty(model, rows, length):
    return {name: jnp.zeros(spec.shape) for name, spec in model.cache_spec(rows, length, "float32").items()}


def full(model, params, ids):
    caches = empty(model, 4, LENGTH)
    (logits, _), _ = kn.functional(model, "decode")(params, {}, ids, Sequences(lengths=jnp.int32(0)), caches)
    return logits


def test_decoding_token_by_token_equals_one_pass(model, params):
    ids, decode = TOKENS[:, :-1], jax.jit(kn.functional(model, "decode"))
    caches, logits = empty(model, 4, LENGTH), []
    for t in range(LENGTH):
        (step, caches), _ = decode(params, {}, ids[:, t : t + 1], Sequences(lengths=jnp.int32(t)), caches)
        logits.append(step)
    assert jnp.allclose(jnp.concatenate(logits, 1), full(model, params, ids), atol=1e-5)


def test_the_caches_have_the_shapes_their_spec_says(model, params):
    _, caches = kn.functional(model, "decode")(
        params, {}, TOKENS[:, :2], Sequences(lengths=jnp.int32(0)), empty(model, 4, LENGTH)
    )[0]
    specs = model.cache_spec(4, LENGTH, "float32")
    assert {name: array.shape for name, array in caches.items()} == {name: spec.shape for name, spec in specs.items()}
    assert specs["k"].axes == ("layers", "batch", "kv_length", "kv_heads", "head_dim")


def test_parameters_kept_by_layer_decode_the_same(model, params):
    sequences, decode = Sequences(lengths=jnp.int32(0)), kn.functional(model, "decode")
    stacked, _ = decode(params, {}, TOKENS[:, :3], sequences, empty(model, 4, LENGTH))
    apart, _ = decode(model.unstacked(params), {}, TOKENS[:, :3], sequences, empty(model, 4, LENGTH))
    assert jnp.allclose(stacked[0], apart[0], atol=1e-6)


class Halves(GradientStrategy):
    """Two microbatches, each weighed by what it holds: the contract leaves room for any such scheme."""

    def gradients(self, loss, params, state, batch, key):
        parts = [jax.tree.map(lambda x, s=s: x[s], batch) for s in (slice(0, 2), slice(2, 4))]
        total = sum(jnp.sum(part.loss_weights) for part in parts)

        def share(p, part):
            outputs = loss(p, state, part, key)
            return outputs.losses["nll"].total / total, outputs

        first, second = (jax.grad(share, has_aux=True)(params, part) for part in parts)
        return jax.tree.map(jnp.add, first[0], second[0]), first[1].merge(second[1])


class Whole(GradientStrategy):
    def gradients(self, loss, params, state, batch, key):
        def value(p):
            outputs = loss(p, state, batch, key)
            return outputs.total_loss(), outputs

        return jax.grad(value, has_aux=True)(params)


def test_gradient_strategies_agree_on_unequal_microbatches(model, params):
    weights = (jnp.arange(4 * LENGTH).reshape(4, LENGTH) % 3 > 0).astype(jnp.float32)
    batch = Batch.of_tokens(TOKENS)._replace(loss_weights=weights.at[:2, 2:].set(0.0))
    given = (ModelLoss(model), params, {}, batch, jax.random.key(0))
    (whole, outputs), (halves, merged) = (s.Config().build().gradients(*given) for s in (Whole, Halves))
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(*map(jax.tree.leaves, (whole, halves)), strict=True))
    assert np.allclose(outputs.total_loss(), merged.total_loss(), atol=1e-5)


class Job(Workload):
    class Config(Workload.Config):
        rows: int = 4

    def programs(self, environment):
        specs = jax.tree.map(
            lambda spec: spec.abstract(), kn.param_specs(self.model), is_leaf=lambda s: isinstance(s, kn.ParamSpec)
        )
        ids = jax.ShapeDtypeStruct((self.config.rows, LENGTH), jnp.int32)
        batch = Batch(ids, ids, None, None, jax.ShapeDtypeStruct(ids.shape, jnp.float32))
        loss = ModelLoss(self.model)

        def total(params, batch):
            return loss(params, {}, batch, None).total_loss()

        return {"loss": Program("loss", total, (specs, batch), environment=environment)}


def test_a_workload_describes_programs_that_then_run(params):
    environment = Environment()
    program = Job.Config(model=CONFIG.clone()).build().programs(environment)["loss"]
    value = program.lower().compile()(params, Batch.of_tokens(TOKENS))
    expected = kn.functional(CONFIG.build())(params, {}, Batch.of_tokens(TOKENS), train=True)[1].total_loss()
    assert np.allclose(value, expected, atol=1e-5)
    assert 0 < float(value) < 3 * np.log(VOCAB)


def test_where_it_runs_is_no_part_of_what_it_is():
    cfg = Job.Config(model=CONFIG.clone())
    moved = cfg.clone().set_path("execution.require_fused", True).set_path("execution.optimizer_memory", "pinned_host")
    assert kn.digest(moved, "experiment") == kn.digest(cfg, "experiment")
    assert kn.digest(moved, "placement") != kn.digest(cfg, "placement")
    other = cfg.clone().set_path("model.stack.num_layers", 2)
    assert kn.digest(other, "experiment") != kn.digest(cfg, "experiment")
    assert kn.from_json(kn.to_json(moved)) == moved
