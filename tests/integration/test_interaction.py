"""Rollouts of several turns: a game whose answer only the environment says, its masks, and what can go wrong."""

import json

import kanawa as kn
import numpy as np
import pytest
from copying_runs import experiment, trained
from kanawa_runtime.rollouts.interaction import Interaction, Turn, played
from kanawa_runtime.rollouts.prompts import Asked
from kanawa_runtime.rollouts.sampler import Drawn, RolloutError
from kanawa_runtime.rollouts.written import laid_out
from kanawa_runtime.runs.events import read_events


class Hint(Interaction):
    """After any first letter it says the one that is wanted, a column of the record; the policy has to repeat it."""

    def begin(self, asked: Asked) -> dict:
        return {"wanted": asked.record["string"][0], "said": []}

    def reply(self, episode: dict, turn: Turn) -> list[int] | None:
        episode["said"].append(turn.ids[-1])
        return [9, episode["wanted"]] if turn.number == 0 else None


def repeated(rollout) -> float:
    """One where the last letter is what the hint was: the prompt alone doesn't say when."""
    return float(rollout.episode["said"][1:] == [rollout.episode["wanted"]])


def game(steps, **grpo):
    cfg = experiment(
        steps=steps, grpo={"reward": repeated, "interaction": Hint.Config(max_turns=2), "new_tokens": 4, **grpo}
    )
    cfg.data.set(held_out_rows=16)
    cfg.evaluation.set(every_steps=steps)
    # A turn ends with a letter.
    return cfg.set(rollouts=cfg.rollouts.set(stop_ids=tuple(range(8)), logged_completions=4))


def test_a_run_plays_and_repeats_itself_after_a_cut(tmp_path):
    cfg = game(4)
    cfg.checkpoints.set(every_steps=2)
    whole = trained(cfg, tmp_path / "whole")
    trained(cfg, tmp_path / "cut", steps=2)
    again = trained(cfg, tmp_path / "cut", steps=4)
    facts = [[(e["loss"], e["reward"], e["metrics"]["gradient_norm"]) for e in events] for events in (whole, again)]
    assert facts[0] == facts[1]
    events = read_events(tmp_path / "whole" / "events.jsonl")
    rows = [row for event in events if event["event"] == "completions" for row in event["rows"]]
    turns = [row["completion"] for row in rows if row["finish_reason"] == "stop"]
    assert turns, "no episode came to its end"
    for row in rows:
        if row["finish_reason"] == "stop":
            *_, sign, hint, last = row["completion"]
            assert (sign, hint) == (9, row["prompt"][0])
            assert row["rewards"]["repeated"] == (last == row["prompt"][0])
    # At most two letters of the policy's an episode: what the environment said is no token of its.
    assert all(event["tokens"] < 32 * 4 for event in whole)
    assert json.dumps(next(event for event in events if event["event"] == "eval")["reward"])


class Adding(Interaction):
    """Says the sum of all the policy has said, for ever."""

    def begin(self, asked: Asked) -> list:
        return list(asked.prompt)

    def reply(self, episode: list, turn: Turn) -> list[int]:
        episode.append(turn.ids[-1])
        if turn.ids[-1] == 7:
            message = "seven is not allowed"
            raise ValueError(message)
        return [100, sum(episode)]


def counting(prompts, limits, seeds):
    """Draws two tokens, of which the last is the prompt's length."""
    return [Drawn((1, len(prompt)), (-0.5, -0.25), "stop") for prompt in prompts]


def test_an_episode_is_one_row_in_which_only_the_policys_tokens_weigh():
    asked = [Asked((2,), (), {}), Asked((3, 4), (), {})]
    drawn = played(Adding.Config(max_turns=2).build(), asked, [1, 2], counting, 20, None)
    assert drawn[0].ids == (1, 1, 100, 3, 1, 5)
    assert drawn[0].mask == (True, True, False, False, True, True)
    assert drawn[0].logprobs == (-0.5, -0.25, 0, 0, -0.5, -0.25)
    assert drawn[1].ids == (1, 2, 100, 9, 1, 6)
    assert [one.finish_reason for one in drawn] == ["length", "length"]
    batch = laid_out([one.prompt for one in asked], drawn, np.asarray([2.0, -1.0]), np.ones(2), 10)
    assert batch.target_ids[0].tolist() == [1, 1, 100, 3, 1, 5, 0, 0, 0, 0]
    assert batch.loss_weights[0].tolist() == [1, 1, 0, 0, 1, 1, 0, 0, 0, 0]
    assert batch.loss_weights[1].tolist() == [0, 1, 1, 0, 0, 1, 1, 0, 0, 0]
    assert batch.advantages[1].tolist() == [0, -1, -1, 0, 0, -1, -1, 0, 0, 0]
    assert batch.sampled_logprobs[0].tolist() == [-0.5, -0.25, 0, 0, -0.5, -0.25, 0, 0, 0, 0]


def test_turns_have_seeds_of_their_own_and_rows_never_grow_too_long():
    seen = []

    def draw(prompts, limits, seeds):
        seen.append((list(limits), list(seeds)))
        return counting(prompts, limits, seeds)

    (drawn,) = played(Adding.Config().build(), [Asked((2,), (), {})], [5], draw, 7, None)
    assert [limits for limits, _ in seen] == [[7], [3]]
    assert seen[0][1] == [5] != seen[1][1]
    assert (len(drawn.ids), drawn.finish_reason) == (6, "length")


def test_an_interaction_that_fails_is_named():
    asked = [Asked((1,) * 7, (), {})]
    with pytest.raises(RolloutError, match=r"interaction: .*Adding\.reply raised ValueError: seven is not allowed"):
        played(Adding.Config().build(), asked, [1], counting, 20, None)
    with pytest.raises(kn.KanawaError, match=r"exact and rollouts\.interaction"):
        kn.compose(game(2, exact=True))
