"""Keys and values shared across layers, with what other packages do to a model: generation and pipelines."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.composition.modifiers import configured, parse_modifier
from kanawa.errors import ConfigError
from kanawa_layers.stack.repeated import RepeatedStack
from kanawa_parallel.pipeline.stack import PipelinedStack
from kanawa_runtime.serve.generate import Generator, SamplingConfig


class Experiment(kn.Config):
    model: kn.Module.Config = kn.REQUIRED


def tiny(*modifiers):
    cfg = Experiment(model=kn.component("models", "llama-tiny")())
    cfg.model.set(vocab_size=64, input_dim=32)
    cfg.model.stack.set(num_layers=3)
    cfg.model.stack.layer.attention.set(num_heads=4, num_kv_heads=2)
    cfg.model.stack.layer.feed_forward.set(hidden_dim=32)
    for text in modifiers:
        cfg = configured(*parse_modifier(text))(cfg)
    return cfg.model


@pytest.mark.parametrize("modifier", ["shared-kv", "shared-kv:last=1"])
def test_greedy_generation_follows_the_whole_rows(modifier):
    model = tiny(modifier).build()
    params = jax.jit(lambda key: kn.initialize(model, key))(jax.random.key(0))
    prompt, greedy = [3, 1, 4, 1, 5], SamplingConfig(temperature=0.0)
    (completion,) = Generator(model, params).generate([prompt], 4, greedy)
    row = jnp.asarray([prompt + completion.token_ids])
    logits, _ = jax.jit(kn.functional(model, "predict"))(params, {}, row)
    np.testing.assert_array_equal(jnp.argmax(logits[0, len(prompt) - 1 : -1], axis=-1), completion.token_ids)


def test_a_pipeline_and_shared_keys_refuse_each_other_by_name():
    wanted = r"takes stacks of equal layers, with a field `layer`; found model.stack \(PatternStack.Config\)"
    with pytest.raises(ConfigError, match=wanted):
        tiny("shared-kv", "pipeline:microbatches=2")
    cfg = Experiment(model=tiny())
    kn.replace(cfg, target=RepeatedStack, new=PipelinedStack.Config(microbatches=2))
    with pytest.raises(ConfigError, match="shared-kv: .* PipelinedStack.Config is neither a Rep"):
        configured("shared-kv", {})(cfg)
