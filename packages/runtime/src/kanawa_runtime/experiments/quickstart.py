"""The offline hello world: a small Llama on the Python standard library's own source."""

import kanawa as kn

from kanawa_runtime.data.source import TextSource
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.muon import Muon
from kanawa_runtime.learn.schedules import WarmupCosine
from kanawa_runtime.train.policies import CheckpointPolicy, EvaluationPolicy
from kanawa_runtime.train.trainer import Trainer

STEPS = 500


def quickstart() -> kn.Config:
    """Returns the experiment of `nox -s quickstart`: under five minutes on two cores.

    `benchmarks/quickstart_curve.py` shows what its choices are worth at equal time.
    """
    model = kn.component("models", "llama-tiny", asker="kanawa-runtime")()
    # A processor loses more on several small products of one input than on a single larger one.
    for name in ("fused-qkv", "fused-gate-up"):
        model = kn.component("modifiers", name, asker="kanawa-runtime").Config().build()(model)
    model.stack.set(scan=False)  # four layers compile in a few seconds, and a loop copies its slices each step
    return Trainer.Config(
        model=model,
        data=TextSource.Config(sequence_length=256),
        batch_size=8,
        steps=STEPS,
        learner=Learner.Config(
            # Three of five iterations learn as well here, where orthogonalising costs a sixth of the step.
            optimizer=Muon.Config(newton_schulz_steps=3),
            schedule=WarmupCosine.Config(peak=1e-2, warmup_fraction=0.08, final_fraction=0.02),
        ),
        evaluation=EvaluationPolicy(every_steps=100, max_batches=16, trigram_baseline=True),
        checkpoints=CheckpointPolicy(every_steps=100),
        sample_prompt="def main",
    )
