"""Environments of `verifiers`: a tiny one with the package's protocol, and the package itself where it is installed."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import fake_verifiers
import pytest
from kanawa.errors import UsageError
from kanawa_runtime.data.chats.source import ChatSource
from kanawa_runtime.rollouts.interaction import played
from kanawa_runtime.rollouts.prompts import asked
from kanawa_runtime.rollouts.rewards import Rollout
from kanawa_runtime.rollouts.sampler import Drawn, RolloutError
from kanawa_runtime.rollouts.verifiers.environment import VerifiersInteraction, VerifiersTasks, environment_reward

CHATS = Path(__file__).parents[1] / "data" / "chats"
MADE = json.loads((CHATS / "fixtures" / "masks.json").read_text())


@pytest.fixture
def package(monkeypatch):
    fake_verifiers.install(monkeypatch)


@pytest.fixture
def rows(tmp_path):
    """Makes the rows of a taskset's prompts, read with a chat template."""
    settings = {"bos_token": "<s>", "eos_token": "<|im_end|>",
                "chat_template": (CHATS / "templates" / "chatml.jinja").read_text()}  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(MADE["tokenizers"]["byte_level"])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))

    def make(**taskset):
        cfg = ChatSource.Config(
            records=VerifiersTasks.Config(**taskset), tokenizer_file=str(tmp_path), sequence_length=256,
            validation_one_in=0, epochs=1, shuffle=False,
        )  # fmt: skip
        cfg.set_prompts()
        return cfg.build()

    return make


def policy(tokenizer, says):
    """Draws what `says` has for the next turn, with the stop token."""
    stop = next(i for i, name in tokenizer.special_names.items() if name == "<|im_end|>")

    def draw(prompts, limits, seeds):
        ids = [(*tokenizer.encode(says.pop(0)).tolist(), stop) for _ in prompts]
        return [Drawn(one, (-0.5,) * len(one), "stop") for one in ids]

    return draw


def rated(question, drawn):
    return environment_reward(
        Rollout(prompt_ids=question.prompt, completion_ids=drawn.ids, answer_ids=(), finish_reason=drawn.finish_reason,
                episode=drawn.episode)
    )  # fmt: skip


@pytest.fixture
def interaction():
    made = []

    def make(tokenizer, **fields):
        made.append(VerifiersInteraction.Config(**fields).build())
        made[-1].prepare(tokenizer)
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_episodes_of_one_turn_and_of_several(package, rows, interaction):
    source = rows(taskset="guessing")
    questions = [asked(source, index, None) for index in range(2)]
    tokenizer = source.tokenizer
    # Turn by turn: both first, then the one that was wrong.
    says = ["red", "green", "blue"]
    drawn = played(
        interaction(tokenizer, taskset="guessing"), questions, [1, 2], policy(tokenizer, says), 200, tokenizer
    )
    assert [rated(*pair) for pair in zip(questions, drawn, strict=True)] == [1.0, pytest.approx(0.9)]
    conversations = (
        ["say red", "red"],
        ["say blue", "green", "not green, again", "blue"],
    )
    for question, one, turns in zip(questions, drawn, conversations, strict=True):
        roles = ("user", "assistant")
        messages = [{"role": "system", "content": "be brief"},
                    *({"role": roles[i % 2], "content": text} for i, text in enumerate(turns))]  # fmt: skip
        whole = source.example_of({"messages": messages}).ids.tolist()
        row = [*question.prompt, *one.ids]
        # What the template writes after the last stop token is no part of a rollout.
        assert row == whole[: len(row)] and whole[len(row) :] == list(source.answer_tail)
        assert sum(one.mask) == one.num_drawn == sum(len(tokenizer.encode(text)) + 1 for text in turns[1::2])


@pytest.mark.skipif(find_spec("verifiers") is None, reason="the session `verifiers` has the package")
@pytest.mark.filterwarnings("ignore")
def test_the_package_itself_with_a_taskset_and_an_environment_of_two_turns(rows, interaction):
    """The environment's own program runs in a process of its own, and asks through the package's server."""
    source = rows(taskset="counting_v1")
    questions = [asked(source, index, None) for index in range(3)]
    tokenizer, says = source.tokenizer, ["0", "7", "2", "1"]
    play = interaction(tokenizer, taskset="counting_v1", seconds=300.0)
    drawn = played(play, questions, [1, 2, 3], policy(tokenizer, says), 200, tokenizer)
    assert [tokenizer.decode(one.ids) for one in drawn] == ["0", "7\nuser\nno, again\nassistant\n1", "2"]
    assert [rated(*pair) for pair in zip(questions, drawn, strict=True)] == [1.0, 1.0, 1.0]
    (last,) = played(play, questions[1:2], [4], policy(tokenizer, ["7", "8"]), 200, tokenizer)
    assert rated(questions[1], last) == 0.0


def test_a_row_without_room_ends_its_episode_which_is_rated(package, rows, interaction):
    source = rows(taskset="guessing")
    questions = [asked(source, 0, None)]
    drawn = played(interaction(source.tokenizer, taskset="guessing"), questions, [1],
                   policy(source.tokenizer, ["green"]), 12, source.tokenizer)  # fmt: skip
    assert drawn[0].finish_reason == "length"
    assert rated(questions[0], drawn[0]) == 0.0


def test_what_is_wrong_is_said(package, rows, interaction, monkeypatch):
    source = rows(taskset="guessing")
    questions = [asked(source, 0, None)]
    other = interaction(source.tokenizer, taskset="guessing", arguments='{"system": "be long"}')
    with pytest.raises(RolloutError, match="asks with other messages than its task's prompt: .*be long"):
        played(other, questions, [1], policy(source.tokenizer, ["red"]), 200, source.tokenizer)
    with pytest.raises(UsageError, match="the verifiers environment 'guessing' can't be loaded: JSONDecodeError"):
        interaction(source.tokenizer, taskset="guessing", arguments="{")
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    with pytest.raises(UsageError, match=r'pip install "kanawa-runtime\[verifiers\]"'):
        rows(taskset="guessing").row(0)
