"""Runs that learn to copy two letters from rewards: an experiment of any family, and the events of its steps."""

import kanawa as kn
from kanawa.composition.experiment import compose
from kanawa_layers.recipes.llama import llama
from kanawa_layers.recipes.mamba2 import mamba2
from kanawa_layers.recipes.mixtral import mixtral
from kanawa_runtime.data.copying import Copying
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.rollouts.rewards import matching_tokens
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.trainer import Trainer

WIDE = {"input_dim": 32, "num_heads": 2, "vocab_size": 10}
FAMILIES = {
    "attention": lambda: llama(num_layers=1, **WIDE, num_kv_heads=2, hidden_dim=32, tied=True),
    "mixture": lambda: mixtral(num_layers=1, **WIDE, num_kv_heads=1, hidden_dim=32, num_experts=2, top_k=1),
    "recurrent": lambda: mamba2(num_layers=1, **WIDE, state_dim=8),
}
ENGINE = {
    "max_sequences": 32, "max_batched_tokens": 64, "page_size": 8, "prefill_tokens": 8, "prefill_sizes": (8,),
    "batch_sizes": (32,),
}  # fmt: skip


def experiment(family="attention", steps=4, grpo=None, **values):
    """Strings of two letters among eight; 4 prompts a step, each 8 times."""
    model = FAMILIES[family]()
    model.stack.set(scan=False)
    learner = Learner.Config(schedule=Constant.Config(peak=3e-3))
    cfg = Trainer.Config(
        model=model,
        data=Copying.Config(sequence_length=8, string_length=2),
        batch_size=32,
        steps=steps,
        learner=learner,
    )
    if "embedding" in model.fields() and family == "attention":
        model.embedding.set(init_stddev=32**-0.5)
    asked = {"reward": matching_tokens, "group_size": 8, "new_tokens": 2, **(grpo or {})}
    cfg = kn.component("modifiers", "grpo").Config(**asked).build()(cfg)
    cfg.rollouts.engine.set(**ENGINE)
    return cfg.set(**values)


def trained(cfg, path, steps=None):
    """Returns the step events of a run that goes, or goes on, to so many steps."""
    Loop(compose(cfg, None, (), () if steps is None else (f"steps={steps}",)), path).execute()
    return [event for event in read_events(path / "events.jsonl") if event["event"] == "step"]
