"""GRPO with rollouts of the serving engine in the training process: what it learns, repeats, hands over and refuses."""

import json
import threading

import jax
import kanawa as kn
import numpy as np
import pytest
from copying_runs import ENGINE, FAMILIES, WIDE, experiment, trained
from kanawa.arrays.plan import ExecutionPlan
from kanawa.arrays.shardings import param_shardings
from kanawa.arrays.tree import flatten_paths
from kanawa.composition.experiment import compose
from kanawa.config import to_json
from kanawa.contracts import CausalLM, DeviceMesh, Environment, StoredModel
from kanawa.errors import KanawaError, UsageError
from kanawa.module import param_specs
from kanawa_layers.recipes.llama import llama
from kanawa_parallel.modifiers import strategies_for
from kanawa_runtime.report.page import render
from kanawa_runtime.report.run_data import load_run
from kanawa_runtime.rollouts.judge import RewardError
from kanawa_runtime.rollouts.rewards import matching_tokens
from kanawa_runtime.rollouts.sampler import EngineSampler, RolloutError, seed_of
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.runs.model_store import RunStore
from kanawa_runtime.runs.open_run import open_run
from kanawa_runtime.runs.run_directory import read_config
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.programs import compilations, listen
from kanawa_runtime.train.loop import Loop


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    cfg = experiment(steps=80)
    cfg.set(batch_size=64).rollouts.engine.set(max_sequences=64, max_batched_tokens=96, batch_sizes=(64,))
    return trained(cfg, tmp_path_factory.mktemp("runs") / "learned")


def test_the_reward_rises_well_above_chance(learned):
    rewards = np.asarray([event["reward"] for event in learned])
    # An eighth of the letters is right by chance, whatever is always said; what rises further has read the prompt.
    assert rewards[:5].mean() < 0.2
    assert rewards[-5:].mean() > 0.35
    assert all(event["tokens"] == 128 for event in learned)


def test_the_engine_draws_from_the_trainers_own_distribution_and_compiles_once(learned):
    assert max(event["metrics"]["loss.sampler_difference_most"] for event in learned) < 1e-4
    assert {event["metrics"]["loss.clipped"] for event in learned} == {0.0}
    assert {event["engine_compilations"] for event in learned} == {0.0}


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name == "recurrent" else pytest.mark.nightly) for name in FAMILIES]
)
def test_every_family_learns_from_what_its_engine_wrote(family, tmp_path):
    events = trained(experiment(family, steps=2), tmp_path)
    assert len(events) == 2
    for event in events:
        assert event["metrics"]["loss.sampler_difference_most"] < 1e-4
        assert event["metrics"]["gradient_norm"] > 0


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name == "attention" else pytest.mark.nightly) for name in FAMILIES]
)
def test_a_step_computes_rollouts_of_half_empty_rows_several_to_a_row(family, tmp_path):
    made, shapes = {}, {}
    for packed in (True, False):
        cfg = experiment(family, steps=2)
        cfg.rollouts.set(packed=packed)
        made[packed] = trained(cfg, tmp_path / str(packed))
        chosen = [e for e in read_events(tmp_path / str(packed) / "events.jsonl") if e["event"] == "kernel_selected"]
        shapes[packed] = {event["problem"] for event in chosen}
    for one, other in zip(made[True], made[False], strict=True):
        # The second step draws by parameters that differ by rounding.
        assert one["reward"] == other["reward"]
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-5)
        assert one["metrics"]["gradient_norm"] == pytest.approx(other["metrics"]["gradient_norm"], rel=1e-4)
    assert shapes[True] > shapes[False]


@pytest.mark.nightly
def test_a_run_that_was_cut_off_repeats_its_rollouts_to_the_bit(tmp_path):
    # Cut between two updates on the same rollouts, whose parameters are gone; the reference are the first ones.
    cfg = experiment(steps=6, grpo={"updates": 2, "kl": 0.05})
    cfg.checkpoints.set(every_steps=3)
    whole = trained(cfg, tmp_path / "whole")
    trained(cfg, tmp_path / "cut", steps=3)
    again = trained(cfg, tmp_path / "cut", steps=6)
    facts = [
        [(event["step"], event["loss"], event["reward"], event["metrics"]["gradient_norm"]) for event in events]
        for events in (whole, again)
    ]
    assert facts[0] == facts[1]
    assert [event["reward"] for event in whole[::2]] == [event["reward"] for event in whole[1::2]]
    assert len({event["reward"] for event in whole}) > 1
    assert whole[1]["metrics"]["loss.kl"] > 0 == whole[0]["metrics"]["loss.kl"]


def test_a_batch_drawn_ahead_is_of_the_parameters_before_the_last_update_and_repeats_after_a_cut(tmp_path):
    cfg = experiment(steps=4)
    cfg.rollouts.set(off_policy=True)
    cfg.checkpoints.set(every_steps=2)
    ahead = trained(cfg, tmp_path / "ahead")
    trained(cfg, tmp_path / "cut", steps=2)
    again = trained(cfg, tmp_path / "cut", steps=4)
    facts = [[(e["loss"], e["reward"], e["metrics"]["gradient_norm"]) for e in events] for events in (ahead, again)]
    assert facts[0] == facts[1]
    assert all("rollout_wait_seconds" in event for event in ahead)
    # The first two batches are drawn by the first parameters: with those, and no update, so is everything.
    still = experiment(steps=2)
    still.learner.schedule.set(peak=1e-30)
    unmoved = trained(still, tmp_path / "still")
    assert [event["reward"] for event in ahead[:2]] == [event["reward"] for event in unmoved]
    # The ratio is to what drew the tokens: after an update it is no longer one.
    assert ahead[0]["loss"] == pytest.approx(0, abs=1e-6)
    assert max(abs(event["loss"]) for event in ahead[1:]) > 1e-5


CALLS, THIRD_DRAW = [], threading.Event()


def patient(rollout):
    """Waits, in the second batch, until the third one is being drawn."""
    CALLS.append(len(CALLS) != 32 or THIRD_DRAW.wait(30))
    return matching_tokens(rollout)


def test_a_batch_is_drawn_while_the_one_before_is_still_rated(tmp_path, monkeypatch):
    CALLS.clear()
    begun, really = [], EngineSampler.draw

    def draw(self, *args, **options):
        begun.append(args)
        if len(begun) == 3:
            THIRD_DRAW.set()
        return really(self, *args, **options)

    monkeypatch.setattr(EngineSampler, "draw", draw)
    cfg = experiment(steps=3, grpo={"reward": patient})
    cfg.rollouts.set(off_policy=True)
    trained(cfg, tmp_path / "ahead")
    assert len(CALLS) >= 3 * 32
    assert all(CALLS)


def first_letter(rollout):
    """Reads a column of the record that the row was made of."""
    return float(rollout.record["string"][0] == rollout.completion_ids[0])


def test_several_rewards_have_curves_held_out_prompts_and_completions_to_read(tmp_path):
    cfg = experiment(steps=4, grpo={"reward": None, "rewards": (matching_tokens, first_letter), "weights": (1.0, 0.5)})
    cfg.data.set(held_out_rows=40)
    cfg.evaluation.set(every_steps=2)
    events = trained(cfg, tmp_path / "run")
    for event in events:
        each = event["rewards"]
        assert event["reward"] == pytest.approx(each["matching_tokens"] + 0.5 * each["first_letter"])
    every = read_events(tmp_path / "run" / "events.jsonl")
    evaluated = [event for event in every if event["event"] == "eval"]
    assert [event["prompts"] for event in evaluated] == [40, 40]
    assert all(set(event["rewards"]) == {"matching_tokens", "first_letter"} for event in evaluated)
    assert all(0 <= event["reward"] <= 1.5 for event in evaluated)
    tables = [event for event in every if event["event"] == "completions"]
    assert [event["step"] for event in tables] == [1, 2, 3, 4]
    rows = [row for event in tables for row in event["rows"]]
    assert len(rows) == 8
    assert all(len(row["prompt"]) == 3 and len(row["completion"]) == 2 for row in rows)
    both = [row["rewards"] for row in rows]
    assert [row["reward"] for row in rows] == [one["matching_tokens"] + 0.5 * one["first_letter"] for one in both]
    page = render([load_run(tmp_path / "run")])
    for words in ("first_letter, held out", "Reward on held-out prompts", "Completions", str(rows[-1]["completion"])):
        assert words in page, words


def falls_over(rollout):
    if rollout.completion_ids[0] == 0:
        message = "no zero"
        raise ValueError(message)
    return matching_tokens(rollout)


def test_groups_that_were_not_rated_weigh_nothing_and_are_counted(tmp_path):
    cfg = experiment(steps=2, grpo={"reward": falls_over, "group_size": 2})
    cfg.rollouts.set(skips_failed=True)
    events = trained(cfg, tmp_path / "run")
    for event in events:
        left_out = event["groups_left_out"]
        assert 0 < left_out < 16
        assert event["reward_failures"]["raised"] >= left_out
    assert "groups left out of training" in render([load_run(tmp_path / "run")])


def raising(rollout):
    message = f"no judge for {len(rollout.completion_ids)}"
    raise ValueError(message)


def raising_of_groups(rewards):
    message = "no ranks of groups"
    raise TypeError(message)


def no_number(rollout):
    return float("nan")


REFUSED = {
    "raises": (
        lambda cfg: cfg.rollouts.set(rewards=(raising,)),
        RewardError,
        "raising raised ValueError: no judge for 2; for the prompt",
    ),
    "no number": (
        lambda cfg: cfg.rollouts.set(rewards=(no_number,)),
        RewardError,
        r"no_number gave nan for the prompt \[.*finite number",
    ),
    "advantages raise": (
        lambda cfg: cfg.rollouts.set(advantages=raising_of_groups),
        RewardError,
        r"advantages, .*raising_of_groups, raised TypeError: no ranks of groups; for rewards \[4, 8\]",
    ),
    "row": (
        lambda cfg: cfg.rollouts.set(new_tokens=7),
        RolloutError,
        "a prompt of 3 tokens and rollouts.new_tokens=7 make 10, but a row and the engine hold 8; raise data.sequence",
    ),
    "engine": (
        lambda cfg: cfg.rollouts.engine.set(max_length=4, page_size=4),
        RolloutError,
        "make 5, but a row and the engine hold 4",
    ),
    "loss": (
        lambda cfg: cfg.set(model=FAMILIES["attention"]()),
        UsageError,
        "emits no `logprobs`.*--modify policy-loss",
    ),
}


@pytest.mark.parametrize(("change", "error", "words"), list(REFUSED.values()), ids=list(REFUSED))
def test_what_cannot_be_rewarded_or_reached_says_so(change, error, words, tmp_path):
    cfg = experiment()
    change(cfg)
    with pytest.raises(error, match=words):
        Loop(compose(cfg), tmp_path / "run").execute()


def test_a_divergence_without_a_reference_is_told_while_composing():
    cfg = experiment()
    cfg.model.loss.set(kl=0.1)
    with pytest.raises(KanawaError, match=r"model.loss.kl is 0.1, .* reference to stay near to; set rollouts"):
        compose(cfg)


def test_who_uses_a_model_needs_neither_its_reward_nor_a_batch_that_fits_a_mesh(tmp_path):
    config = FAMILIES["attention"]()
    params = flatten_paths(jax.jit(lambda key: kn.initialize(config.build(), key))(jax.random.key(0)))
    RunStore().save(tmp_path / "run", StoredModel(config, params, {}, {}, {}))
    file = tmp_path / "run" / "config.json"
    told = json.loads(file.read_text()) | {"rollouts": to_json(experiment().rollouts), "batch_size": 6}
    file.write_text(json.dumps(told).replace("matching_tokens", "a_reward_that_is_gone"))
    with pytest.raises(KanawaError, match="a_reward_that_is_gone"):
        read_config(tmp_path / "run")
    assert open_run(tmp_path / "run").trainer.config.rollouts is None
    with pytest.raises(KanawaError, match="batch_size: batch is 6, which"):
        open_run(tmp_path / "run", target="cpu-8")
    opened = open_run(tmp_path / "run", target="cpu-8", serves=True)
    assert opened.environment.mesh.size == 8


def test_the_modifier_names_what_has_no_place_for_rollouts():
    modifier = kn.component("modifiers", "grpo").Config(reward=matching_tokens).build()
    with pytest.raises(KanawaError, match="has no rollouts slot: only what `kanawa train` runs learns from rewards"):
        modifier(FAMILIES["attention"]())


PROMPTS = ([(1, 2, 8), (3, 3, 8)], [3, 3], (), [seed_of(0, 1, row) for row in range(2)])


def drawn_with(sampler, params, *prompts):
    sampler.load(params, {})
    return sampler.draw(*prompts)


@pytest.fixture(scope="module")
def alone():
    """A model, two sets of its parameters, and what one device draws with either."""
    model: CausalLM = llama(num_layers=1, **WIDE, num_kv_heads=2, hidden_dim=32).build()
    both = []
    for seed in range(2):
        params = jax.jit(lambda key: kn.initialize(model, key))(jax.random.key(seed))
        # As they are drawn, all tokens are about as likely, and one set of weights as good as the other.
        both.append({**params, "head": jax.tree.map(lambda x: 20 * x, params["head"])})
    sampler = EngineSampler(model, both[0], {}, Environment(), EngineConfig(**ENGINE))
    drawn = [drawn_with(sampler, each, *PROMPTS) for each in both]
    free = drawn[0][0]
    ended = drawn_with(sampler, both[0], PROMPTS[0], [3, 3], (free.ids[-1],), PROMPTS[3])[0]
    sampler.close()
    count = free.ids.index(free.ids[-1]) + 1
    assert (ended.ids, ended.finish_reason) == (free.ids[:count], "stop")
    assert ended.logprobs == pytest.approx(free.logprobs[:count], abs=1e-5), "the stop token's is missing"
    assert [one.ids for one in drawn[0]] != [one.ids for one in drawn[1]]
    return model, both, drawn


@pytest.mark.parametrize("name", ["fsdp", pytest.param("tensor", marks=pytest.mark.nightly)])
def test_weights_go_from_a_mesh_to_the_engine_and_take_the_place_of_the_old_ones(name, alone):
    model, both, wanted = alone
    sizes = {name: 2}
    mesh = DeviceMesh.Config(axes=sizes).build().mesh(jax.devices()[:2])
    strategies = [strategy.build() for strategy in strategies_for(sizes)]
    rules = {
        f"{kind}_rules": tuple(rule for one in strategies for rule in getattr(one, f"{kind}_rules")())
        for kind in ("param", "activation")
    }
    where = Environment(ExecutionPlan(**rules), mesh)
    trained_at = param_shardings(param_specs(model), rules["param_rules"], mesh)
    placed = [jax.device_put(params, trained_at) for params in both]
    sampler = EngineSampler(model, placed[0], {}, where, EngineConfig(**ENGINE))
    drawn_with(sampler, placed[0], *PROMPTS)
    listen()
    before, held = compilations(), places(sampler)
    drawn = [drawn_with(sampler, p, *PROMPTS) for p in placed]
    assert [[one.ids for one in each] for each in drawn] == [[one.ids for one in each] for each in wanted]
    for ours, theirs in zip(drawn, wanted, strict=True):
        for one, two in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one.logprobs, two.logprobs, atol=1e-5)
    assert compilations() == before, "handing over the second weights compiled something"
    assert places(sampler) == held, "the new weights lie beside the old ones' memory"
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(placed)), "the trainer's own were taken"
    sampler.close()


def places(sampler):
    """Returns where each array of the engine lies in memory."""
    leaves = jax.tree.leaves(sampler.engine._programs.params)
    return sorted(shard.data.unsafe_buffer_pointer() for leaf in leaves for shard in leaf.addressable_shards)
