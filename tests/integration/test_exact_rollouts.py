"""Rollouts whose log-probabilities are the training step's, bit for bit: attention, experts, recurrences and LoRA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.composition.experiment import compose
from kanawa.contracts import Environment, RolloutBatch
from kanawa.errors import KanawaError
from kanawa_backends_cpu.native.available import why_not as why_no_native
from kanawa_layers.recipes.llama import llama
from kanawa_layers.recipes.mamba2 import mamba2
from kanawa_layers.recipes.mixtral import mixtral
from kanawa_parallel.accumulate import Accumulate
from kanawa_parallel.pipeline.one_forward_one_backward import OneForwardOneBackward
from kanawa_runtime.data.copying import Copying
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.rollouts.grpo import GRPO
from kanawa_runtime.rollouts.interaction import Interaction
from kanawa_runtime.rollouts.rewards import matching_tokens
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.split_step import Microbatches, SplitProgram, halves
from kanawa_runtime.train.trainer import Trainer

WIDE = {"num_layers": 2, "input_dim": 32, "num_heads": 4, "vocab_size": 120}
FAMILIES = {
    "attention": lambda: llama(**WIDE, num_kv_heads=2, hidden_dim=64),
    "mixture": lambda: mixtral(**WIDE, num_kv_heads=2, hidden_dim=32, num_experts=4, top_k=2),
    "recurrent": lambda: mamba2(**WIDE, state_dim=8),
}
NEW = 20
ENGINE = {
    "max_sequences": 16, "max_batched_tokens": 512, "page_size": 16, "prefill_tokens": 16, "prefill_sizes": (16,),
    "batch_sizes": (16,),
}  # fmt: skip


def experiment(family, exact=True, **rollouts):
    data = Copying.Config(sequence_length=32, string_length=6, letters=100)
    learner = Learner.Config(schedule=Constant.Config(peak=3e-3))
    cfg = Trainer.Config(model=FAMILIES[family](), data=data, batch_size=16, steps=3, learner=learner)
    asked = {"reward": matching_tokens, "group_size": 4, "new_tokens": NEW, "exact": exact}
    cfg = GRPO.Config(**asked).build()(cfg)
    cfg.rollouts.engine.set(**ENGINE)
    cfg.rollouts.set(**rollouts)
    return cfg


def trained(cfg, path, modifiers=(), overrides=()):
    Loop(compose(cfg, None, modifiers, overrides), path).execute()
    return [event for event in read_events(path / "events.jsonl") if event["event"] == "step"]


def differences(events):
    return [event["metrics"]["loss.sampler_difference_most"] for event in events]


BF16 = "compute:dtype=bfloat16"
#: Matmuls whose rows depend on how many there are, so that the engine draws some tokens that the step doesn't.
UNLIKE = 'execution.kernels={"matmul": "matmul.any.xla"}'
MESH = 'mesh:axes={"data":2,"fsdp":4}'


@pytest.mark.parametrize(
    ("family", "modifiers"),
    [
        ("mixture", (BF16,)),
        pytest.param("attention", (), marks=pytest.mark.nightly),
        pytest.param("attention", (BF16,), marks=pytest.mark.nightly),
        pytest.param("mixture", (), marks=pytest.mark.nightly),
        pytest.param("recurrent", (), marks=pytest.mark.nightly),
        pytest.param("recurrent", (BF16,), marks=pytest.mark.nightly),
        pytest.param("attention", ("lora",), marks=pytest.mark.nightly),
        pytest.param("attention", ("lora", BF16), marks=pytest.mark.nightly),
    ],
)
def test_the_step_computes_the_log_probabilities_of_the_rollouts_bit_for_bit(family, modifiers, tmp_path):
    events = trained(experiment(family), tmp_path / "exact", modifiers)
    assert differences(events) == [0.0] * 3
    assert {event["metrics"]["loss.clipped"] for event in events} == {0.0}
    assert all(event["tokens"] == 16 * NEW and event["forward_passes"] >= 1 for event in events)
    # Without the mode they differ: the engine's arithmetic is its own.
    assert min(differences(trained(experiment(family, exact=False), tmp_path / "usual", modifiers))) > 0.0


@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_step_in_two_programs_makes_the_updates_of_one(microbatches):
    cfg = experiment("attention").set(batch_size=4)
    trainer = (cfg if microbatches == 1 else cfg.set(gradients=Accumulate.Config(microbatches=microbatches))).build()
    step = trainer.programs(Environment())["train_step"]
    draw = np.random.default_rng(0)
    shape = step.abstract_args[1].input_ids.shape
    ids, segments = draw.integers(0, 100, (2, *shape), np.int32), np.ones(shape, np.int32)
    places = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
    weights, gains, before = (draw.random(shape, np.float32) for _ in range(3))
    batch = RolloutBatch(*ids, places, segments, weights, gains - 0.5, -5 * before, draw_keys=ids[0])
    results = []
    for program in (SplitProgram(trainer, step), step):
        compiled, state = program.lower().compile(), jax.jit(trainer.init)()
        if program is not step:
            known = state.params, state.state, state.step
            first = compiled.forward(*known, batch)
            assert sorted(first) == list(range(microbatches))
            compiled.forward(*known, batch._replace(input_ids=ids[1]))
            for index, (logprobs, _) in compiled.forward(*known, batch).items():
                np.testing.assert_array_equal(logprobs, first[index][0])
            last = microbatches - 1
            np.testing.assert_array_equal(compiled.forward(*known, batch, [last])[last][0], first[last][0])
        after, report = compiled(state, batch)
        results.append((flatten_paths(after.params), flatten_paths(after.opt), report.read()))
    for ours, theirs in zip(*(result[:2] for result in results), strict=True):
        for path, leaf in ours.items():
            np.testing.assert_allclose(leaf, theirs[path], rtol=1e-3, atol=2e-6, err_msg=path)
    assert results[0][2] == pytest.approx(results[1][2], rel=1e-4, abs=1e-6)


def test_each_shard_of_a_batch_holds_a_part_of_every_microbatch():
    cut = Microbatches(count=2, shards=2, rows=8)
    np.testing.assert_array_equal(cut.cut(jnp.arange(8), 1), [2, 3, 6, 7])
    np.testing.assert_array_equal(cut.places(range(8)), [[0, 1, 4, 5], [2, 3, 6, 7]])
    # A process with the second shard alone.
    np.testing.assert_array_equal(cut.places(range(4, 8)), [[0, 1], [2, 3]])
    ids = jax.ShapeDtypeStruct((6, 4), jnp.int32)
    with pytest.raises(KanawaError, match="a batch of 6 rows on 1 devices can't be cut in 4 equal microbatches"):
        Microbatches.of(RolloutBatch(*[ids] * 7), 4)


@pytest.mark.parametrize(
    ("modifiers", "kept"),
    [
        ((BF16,), 1),
        pytest.param(("lora", BF16), 2, marks=pytest.mark.nightly),
        pytest.param((BF16, MESH), 4, marks=pytest.mark.nightly),
        pytest.param((MESH,), 1, marks=pytest.mark.nightly),
    ],
)
def test_microbatches_whose_tokens_all_stay_are_not_computed_again(modifiers, kept, tmp_path):
    cfg = experiment("attention", kept_microbatches=kept)
    # On eight devices each microbatch has a row of every one.
    count = 2 if MESH in modifiers else 4
    events = trained(cfg, tmp_path / "run", (*modifiers, f"accumulate:microbatches={count}"), (UNLIKE,))
    assert differences(events) == [0.0] * 3
    parts = [count * event["forward_passes"] for event in events]
    assert all(part == int(part) >= count for part in parts)
    if BF16 in modifiers and MESH not in modifiers:
        # Some tokens are drawn again, and not in all microbatches every time.
        assert any(part % count for part in parts)


@pytest.mark.skipif(why_no_native() is not None, reason="no native functions here")
def test_an_engine_that_computes_rows_alike_draws_what_the_step_draws(tmp_path):
    # Few rewards differ within a group at first, so that others' prompts are tried.
    cfg = experiment("attention", attempts=3)
    cfg.model.stack.layer.attention.set(head_dim=16)
    events = trained(cfg, tmp_path / "run", (BF16, "accumulate:microbatches=4"))
    assert differences(events) == [0.0] * 3
    assert {event["redrawn_tokens"] for event in events} == {0}
    assert any(event["groups_redrawn"] for event in events)
    for event in events:
        # A group is a microbatch here: one that tries another prompt is passed again, and no other.
        assert event["forward_passes"] == 1 + event["groups_redrawn"] / 4


@pytest.mark.nightly
@pytest.mark.parametrize("modifiers", [(MESH,), (MESH, BF16)])
def test_on_a_mesh_the_step_draws_what_it_trains_on(modifiers, tmp_path):
    assert differences(trained(experiment("mixture"), tmp_path / "run", modifiers)) == [0.0] * 3


@pytest.mark.nightly
def test_a_run_that_was_cut_off_repeats_its_rollouts_to_the_bit(tmp_path):
    # Cut between two updates on the same rollouts, whose keys have to be in the checkpoint.
    cfg = experiment("attention", updates=2).set(steps=4)
    cfg.checkpoints.set(every_steps=3)
    whole = trained(cfg, tmp_path / "whole", (BF16,))
    trained(cfg, tmp_path / "cut", (BF16,), ("steps=3",))
    again = trained(cfg, tmp_path / "cut", (BF16,), ("steps=4",))
    facts = [
        [(event["step"], event["loss"], event["reward"], event["redrawn_tokens"]) for event in events]
        for events in (whole, again)
    ]
    assert facts[0] == facts[1]
    assert len(facts[0]) == 4


def test_what_is_shown_may_not_depend_on_what_comes_late():
    with pytest.raises(KanawaError, match="depend on rewards"):
        halves(lambda x, late: (x, (x * late,)), (1.0, 2.0), [False, True], 1)
    cut = halves(lambda x, y, late: (jnp.sin(x) * late + x, (jnp.sin(x),)), (1.0, 2.0, 3.0), [False, False, True], 1)
    floats, others, shown = cut.first([0.5, 9.0, 0.0])
    assert float(shown[0]) == float(floats[0]) == pytest.approx(np.sin(0.5))
    assert float(cut.second(floats, others, [0.0, 9.0, 4.0])[0]) == pytest.approx(4 * np.sin(0.5) + 0.5)


class Silent(Interaction):
    """Never answers."""

    def begin(self, asked):
        return None

    def reply(self, episode, turn):
        return None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda cfg: cfg.rollouts.set(off_policy=True), "rollouts.exact and rollouts.off_policy"),
        (lambda cfg: cfg.rollouts.set(interaction=Silent.Config()), "rollouts.exact and rollouts.interaction"),
    ],
)
def test_what_does_not_go_together_says_so(change, words):
    cfg = experiment("attention")
    change(cfg)
    with pytest.raises(KanawaError, match=words):
        compose(cfg, None, (), ())


def test_a_strategy_with_forward_passes_of_its_own_is_refused_while_composing():
    cfg = experiment("attention").set(gradients=OneForwardOneBackward.Config(microbatches=2))
    with pytest.raises(KanawaError, match=r"rollouts\.exact is set, and gradients is .*accumulate:microbatches=N"):
        compose(cfg, None, (), ())
