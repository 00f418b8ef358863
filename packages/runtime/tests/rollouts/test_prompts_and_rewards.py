"""Prompts from rows, rewards from rollouts, advantages from rewards, and the sizes a config may have."""

import json
import re

import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
import tiny_lm
from kanawa.contracts import Batch
from kanawa.testing.data_source import DataSourceConformance
from kanawa_runtime.data.copying import Copying
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
from kanawa_runtime.experiments.checks import data_problems
from kanawa_runtime.rollouts.advantages import centred, group_relative
from kanawa_runtime.rollouts.groups import rollout_of
from kanawa_runtime.rollouts.maker import RolloutMaker
from kanawa_runtime.rollouts.prompts import Grouped, Question, question
from kanawa_runtime.rollouts.rewards import Rollout, exact_match, matching_tokens
from kanawa_runtime.rollouts.rollouts import Rollouts
from kanawa_runtime.rollouts.sampler import Drawn
from kanawa_runtime.serve.engine.config import EngineConfig


class TestCopying(DataSourceConformance):
    def source(self):
        return Copying.Config(sequence_length=9, letters=5, string_length=4).build()


class TestHeldOutCopying(DataSourceConformance):
    def source(self):
        return Copying.Config(held_out_rows=4).build().held_out()


class TestGrouped(DataSourceConformance):
    def source(self):
        return grouped(Copying.Config())


def grouped(source, **sizes):
    sizes = {"group_size": 3, "batch_size": 6, "sequence_length": source.sequence_length, **sizes}
    return Grouped.Config(source=source, **sizes).build()


@pytest.mark.parametrize("updates", [1, 2])
def test_a_group_has_one_prompt_and_a_row_that_counts_on_through_repeated_batches(updates):
    source = Copying.Config()
    rows = grouped(source, updates=updates)
    plain = source.build()
    wanted = [plain.row(i)["input_ids"].tolist() for i in (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3)]
    got = [rows.row(i)["input_ids"].tolist() for i in range(12 * updates)]
    assert got == [row for batch in (wanted[:6], wanted[6:]) for row in batch * updates]


def test_a_group_that_tries_again_has_prompts_of_its_own():
    source, sizes = Copying.Config(), {"attempts": 2, "updates": 2}
    rows, plain = grouped(source, **sizes), source.build()
    # Two groups of three: a batch has four prompts, of which the later two are for second attempts.
    tried = [[rows.asked(i, attempt, None).record["string"] for attempt in (0, 1)] for i in (0, 3, 6, 12, 15)]
    wanted = [[plain.record(i)["string"] for i in pair] for pair in ((0, 2), (1, 3), (0, 2), (4, 6), (5, 7))]
    assert tried == wanted
    assert rows.record(15) == plain.record(5)
    assert grouped(RandomTokens.Config(sequence_length=4, num_rows=5), attempts=2).num_rows == 6


def test_rows_that_fill_no_batch_are_left_out():
    assert grouped(RandomTokens.Config(sequence_length=4, num_rows=5)).num_rows == 12
    assert grouped(RandomTokens.Config(sequence_length=4, num_rows=5), updates=2).num_rows == 24
    assert grouped(RandomTokens.Config(sequence_length=4)).num_rows is None


def test_the_prompt_ends_before_the_first_weighted_target():
    ids = np.asarray([[4, 5, 6, 7, 0], [4, 5, 0, 0, 0]], np.int32)
    targets = np.asarray([[5, 6, 7, 8, 0], [5, 0, 0, 0, 0]], np.int32)
    weights = np.asarray([[0, 0, 1, 1, 0], [0, 0, 0, 0, 0]], np.float32)
    batch = Batch(ids, targets, None, (ids > 0).astype(np.int32), weights)
    assert question(batch, 0) == ((4, 5, 6), (7, 8))
    assert question(batch, 1) == ((4, 5), ())


def test_a_packed_row_asks_the_first_question_that_has_an_answer():
    ids = np.asarray([[1, 2, 3, 4, 5, 6, 7, 8, 0]], np.int32)
    targets = np.asarray([[2, 0, 4, 5, 0, 7, 8, 9, 0]], np.int32)
    segments = np.asarray([[1, 1, 2, 2, 2, 3, 3, 3, 0]], np.int32)
    weights = np.asarray([[0, 0, 0, 1, 0, 0, 1, 1, 0]], np.float32)
    # Neither what another sequence says nor what it is to be answered with.
    assert question(Batch(ids, targets, segments, segments, weights), 0) == ((3, 4), (5,))


def test_a_row_of_text_has_no_question_unless_its_length_is_said():
    ids, targets, segments = [[9, 1, 2, 3, 8, 1]], [[1, 2, 3, 8, 1, 2]], [[1, 1, 1, 1, 2, 2]]
    batch = Batch(*map(np.asarray, (ids, targets, segments, segments)), np.ones((1, 6), np.float32))
    with pytest.raises(kn.errors.UsageError, match=r"row 0 .* has no question.* set rollouts\.prompt_tokens=N"):
        question(batch, 0)
    assert question(batch, 0, 2) == ((9, 1), (2, 3, 8))
    assert question(batch, 0, 9) == ((9, 1, 2, 3), (8,))


@pytest.mark.parametrize("prompt_tokens", [None, 4])
def test_grpo_on_text_is_refused_while_composing(prompt_tokens):
    cfg = tiny_lm.tiny().set(data=RandomTokens.Config(sequence_length=16, vocab_size=64))
    cfg.set(rollouts=Rollouts(rewards=(exact_match,), new_tokens=4, prompt_tokens=prompt_tokens))
    problems = [text for text in data_problems(cfg) if "have no question" in text]
    assert len(problems) == (prompt_tokens is None)


def test_two_rewards():
    rollout = Rollout(prompt_ids=(1,), completion_ids=(2, 3, 9), answer_ids=(2, 3, 4, 5), finish_reason="length")
    assert (matching_tokens(rollout), exact_match(rollout)) == (0.5, 0.0)
    same = Rollout(
        prompt_ids=(1,), completion_ids=(7,), answer_ids=(8,), finish_reason="stop", completion=" 12\n", answer="12"
    )
    assert exact_match(same) == 1.0


def test_a_reward_sees_texts_where_there_is_a_tokenizer():
    tokenizer = ByteTokenizer.Config().build()
    asked = Question(tuple(tokenizer.encode("2+2=").tolist()), tuple(tokenizer.encode("4").tolist()))
    ids = (*tokenizer.encode("4").tolist(), tokenizer.eos_id, tokenizer.vocab_size + 1)
    drawn = Drawn(ids, (-1.0,) * len(ids), "stop")
    rollout = rollout_of(asked, drawn, tokenizer)
    assert (rollout.prompt, rollout.completion, rollout.answer) == ("2+2=", "4", "4")
    assert exact_match(rollout) == 1.0
    assert rollout_of(asked, drawn, None).completion == ""


def test_advantages_against_numbers_worked_out_by_hand():
    rewards = np.asarray([[0.0, 1.0, 1.0, 0.0], [0.7, 0.7, 0.7, 0.7]])
    np.testing.assert_allclose(group_relative(rewards), [[-1, 1, 1, -1], [0, 0, 0, 0]], atol=1e-3)
    np.testing.assert_allclose(centred(rewards), [[-0.5, 0.5, 0.5, -0.5], [0, 0, 0, 0]], atol=1e-12)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"group_size": 1}, "rollouts.group_size is 1, expected at least 2: a reward is compared with the rest"),
        ({"group_size": 5}, r"batch_size is 8, expected a multiple of rollouts.group_size \(5\)"),
        (
            {"new_tokens": 16, "group_size": 4},
            "rollouts.new_tokens is 16, but data.sequence_length is 16, which has to",
        ),
        ({"group_size": 4, "new_tokens": 2, "stop_ids": (3, 10**6)}, r"rollouts.stop_ids holds 1000000, and the model"),
        (
            {"group_size": 4, "new_tokens": 8, "engine": EngineConfig(max_length=8)},
            "rollouts.new_tokens is 8, but rollouts.engine.max_length is 8, which has to hold a prompt as well",
        ),
    ],
)
def test_sizes_that_cannot_be(sizes, words):
    import tiny_lm

    cfg = tiny_lm.tiny().set(rollouts=Rollouts(rewards=(exact_match,), **sizes), batch_size=8)
    cfg.data.set(sequence_length=16)
    with pytest.raises(kn.KanawaError, match=words):
        kn.compose(cfg)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"weights": (1.0, 2.0)}, "rollouts.weights has 2 numbers for 1 rewards, expected one each"),
        ({"rewards": ()}, "rollouts.rewards is empty, expected one at least: `kanawa list rewards`"),
        ({"overlong_tokens": 5}, r"overlong_tokens is 5, expected at most rollouts.new_tokens \(4\)"),
    ],
)
def test_rewards_that_cannot_be(fields, words):
    rollouts = Rollouts(**{"rewards": (exact_match,), "new_tokens": 4, **fields})
    assert [problem for problem in rollouts.problems_of(8, 16, tiny_lm.tiny().model) if re.search(words, problem)]


def test_without_a_reward_nothing_is_composed():
    import tiny_lm

    with pytest.raises(kn.KanawaError, match=r"rollouts\.reward"):
        kn.compose(tiny_lm.tiny().set(rollouts=Rollouts(group_size=2, new_tokens=2), batch_size=8))


def test_the_reference_is_known_again_where_other_hardware_drew_its_last_bits():
    maker = RolloutMaker.__new__(RolloutMaker)
    maker.config, maker._made, maker._ahead = Rollouts(rewards=(exact_match,)), None, None
    drawn = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    maker._reference = {"weight": jnp.asarray(drawn[0]), "scale": jnp.ones(4)}
    saved = maker.saved(0)
    assert json.loads(json.dumps(saved)) == saved
    maker._reference = {"weight": jnp.asarray(np.nextafter(drawn[0], 9, dtype=np.float32)), "scale": jnp.ones(4)}
    assert maker.saved(0) != saved
    maker.resume(saved)
    for others in ({"weight": jnp.asarray(drawn[1]), "scale": jnp.ones(4)}, {"weight": jnp.asarray(drawn[0])}):
        maker._reference = others
        with pytest.raises(kn.KanawaError, match="the run's reference policy was its first parameters, and these are"):
            maker.resume(saved)
