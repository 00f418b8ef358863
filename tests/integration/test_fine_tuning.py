"""From a Hugging Face folder and chat.jsonl to a folder that answers: what is learned, and what travels along."""

import json
import pathlib

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.cli.main import main
from kanawa.contracts import Batch, StoredModel
from kanawa_layers.convert.families import model_config
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_runtime.data.chats.source import ChatSource
from kanawa_runtime.data.packing import OnePerRow
from kanawa_runtime.data.records.files import RecordFiles
from kanawa_runtime.data.tokenizers.load import load_tokenizer
from kanawa_runtime.runs.tokenizer_file import with_stop_ids

ROOT = pathlib.Path(__file__).resolve().parents[2]
LLAMA = ROOT / "packages/layers/tests/fixtures/llama/config.json"
MADE = json.loads((ROOT / "packages/runtime/tests/data/chats/fixtures/masks.json").read_text())
#: As most published templates are: it marks nothing.
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WORDS = ("red", "green", "blue", "grey")


def prompt(word: str) -> str:
    return f"<|im_start|>user\nsay {word}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with `model` and chat.jsonl."""
    folder = tmp_path_factory.mktemp("fine-tuning")
    write_folder(folder)
    return folder


def write_folder(folder: pathlib.Path) -> None:
    """Writes `model`, a random Llama with a chat template, and chat.jsonl."""
    sizes = {"vocab_size": 448, "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 256}
    cfg = model_config(json.loads(LLAMA.read_text()) | sizes)
    params = flatten_paths(kn.initialize(cfg.build(), jax.random.key(0)))
    model = folder / "model"
    HuggingFaceStore().save(model, StoredModel(cfg, {path: np.asarray(leaf) for path, leaf in params.items()}))
    (model / "tokenizer.json").write_text(MADE["tokenizers"]["byte_level"])
    # The end token is not the one that ends an answer: templates of base models are so.
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    lines = [
        {"messages": [{"role": "user", "content": f"say {word}"}, {"role": "assistant", "content": word}]}
        for word in WORDS * 20
    ]
    (folder / "chat.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def rows(work: pathlib.Path, **fields: object) -> ChatSource:
    records = RecordFiles.Config(files=("chat.jsonl",), root=str(work))
    sizes = {"sequence_length": 96, "validation_one_in": 0, "epochs": 1, "shuffle": False, **fields}
    made: ChatSource = ChatSource.Config(records=records, tokenizer_file=str(work / "model"), **sizes).build()
    return made


def batch_of(source: ChatSource, count: int) -> Batch:
    read = [source.row(index) for index in range(count)]
    return Batch(**{name: np.stack([row[name] for row in read]) for name in read[0]})


def model_of(work: pathlib.Path):
    stored = HuggingFaceStore().load(work / "model")
    params = {path: jnp.asarray(array) for path, array in stored.params.items()}
    return stored.config.build(), params


def loss_and_gradients(module, flat, batch):
    from kanawa.arrays.tree import unflatten_paths

    def loss(params):
        return kn.functional(module)(params, {}, batch, train=True)[1].total_loss()

    value, gradients = jax.jit(jax.value_and_grad(loss))(unflatten_paths(flat))
    return float(value), {path: np.asarray(leaf) for path, leaf in flatten_paths(gradients).items()}


def test_what_the_user_says_has_no_gradient(work):
    """At the head its gradient is exactly zero, and other targets in its place change nothing, to the last bit."""
    module, flat = model_of(work)
    batch = batch_of(rows(work), 2)
    weighted = batch.loss_weights > 0
    assert 0.05 < weighted.mean() < 0.5
    x = jax.random.normal(jax.random.key(1), (*batch.input_ids.shape, 64))

    def of_stream(x):
        from kanawa.arrays.tree import unflatten_paths

        return kn.functional(module, "head_and_loss")(unflatten_paths(flat), {}, x, batch, train=True)[1].total_loss()

    gradient = np.abs(np.asarray(jax.grad(of_stream)(x))).max(axis=-1)
    assert (gradient[~weighted] == 0).all()
    assert (gradient[weighted] > 0).all()
    other = batch._replace(target_ids=np.where(weighted, batch.target_ids, 7))
    assert (other.target_ids != batch.target_ids).any()
    loss, gradients = loss_and_gradients(module, flat, batch)
    same_loss, same = loss_and_gradients(module, flat, other)
    assert same_loss == loss
    for path, leaf in gradients.items():
        np.testing.assert_array_equal(same[path], leaf)


def test_packed_conversations_are_learned_as_unpacked_ones(work):
    module, flat = model_of(work)
    packed, alone = rows(work), rows(work, packing=OnePerRow.Config(), sequence_length=48)
    assert alone.num_rows == 80 > 2 * packed.num_rows
    loss, gradients = loss_and_gradients(module, flat, batch_of(packed, packed.num_rows))
    other_loss, others = loss_and_gradients(module, flat, batch_of(alone, 80))
    assert loss == pytest.approx(other_loss, rel=1e-5)
    for path, leaf in gradients.items():
        np.testing.assert_allclose(others[path], leaf, atol=1e-5 * max(1.0, float(np.abs(leaf).max())), err_msg=path)


SIZES = ("--set", "data.sequence_length=96", "--set", "batch_size=8", "--set", "learner.schedule.peak=0.005")


def answers(kanawa, folder: str, work: pathlib.Path) -> dict[str, list[int]]:
    """Returns the ids that a model writes after each question, at most twelve."""
    asked = [part for word in WORDS for part in ("--prompt", prompt(word))]
    out = kanawa("generate", folder, *asked, "--max-tokens", "12", "--temperature", "0", "--json")
    records = [json.loads(line) for line in out.splitlines()]
    return {word: record["token_ids"] for word, record in zip(WORDS, records, strict=True)}


@pytest.mark.parametrize(
    "tuning", [(), pytest.param(("--modify", "lora:rank=16"), marks=pytest.mark.nightly)], ids=["full", "lora"]
)
def test_three_commands_from_a_folder_to_one_that_answers(kanawa, work, tuning):
    name = "tuned-lora" if tuning else "tuned"
    steps = ("--steps", "250" if tuning else "120")
    kanawa("train", "model", "--modify", "sft", *tuning, "--data", "chat.jsonl", "--run", name, *SIZES, *steps)
    kanawa("convert", "to-hf", name, f"{name}-hf")
    tokenizer = load_tokenizer(work / f"{name}-hf")
    stop = MADE["cases"]["byte_level"][0]["ids"][-2]
    assert tokenizer.special_names[stop] == "<|im_end|>"
    for folder in (name, f"{name}-hf"):
        for word, ids in answers(kanawa, folder, work).items():
            assert tokenizer.decode(ids) == word
            assert len(ids) <= len(tokenizer.encode(word)) + 1, "it stops by itself"
    files = {path.name: path.read_text() for path in (work / f"{name}-hf").iterdir() if path.suffix != ".safetensors"}
    assert files["chat_template.jinja"] == TEMPLATE
    assert stop in json.loads(files["generation_config.json"])["eos_token_id"]


def test_an_export_names_its_stop_tokens_where_only_the_config_did():
    kept = {"generation_config.json": b'{"eos_token_id": 3, "top_p": 0.5}', "tokenizer.json": b"{}"}
    assert with_stop_ids(kept, (3,)) == kept
    assert json.loads(with_stop_ids(kept, (3, 1))["generation_config.json"]) == {"eos_token_id": [1, 3], "top_p": 0.5}
    alone = with_stop_ids({"tokenizer.json": b"{}"}, (1,))
    assert json.loads(alone["generation_config.json"]) == {"eos_token_id": [1]}
    assert with_stop_ids({"tokenizer.json": b"{}"}, ()) == {"tokenizer.json": b"{}"}


def test_the_command_says_what_is_wrong(work, monkeypatch, capsys, caplog):
    monkeypatch.chdir(work)
    (work / "bad.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n' * 3)
    asked = ("train", "model", "--modify", "sft", "--run", "bad", "--steps", "1")
    assert main([*asked, "--data", "bad.jsonl"]) == 2
    assert "bad.jsonl:2: messages: nothing of it is an answer to learn" in capsys.readouterr().err
    all_of_it = ("--set", "data.validation_one_in=0")
    assert "run_started" not in (work / "bad" / "events.jsonl").read_text(), "nothing was compiled for it"
    (work / "mostly.jsonl").write_text('{"messages": []}\n' + (work / "chat.jsonl").read_text())
    skipping = (*asked[:3], "sft:on_bad=skip", "--run", "mostly", *asked[6:])
    assert main([*skipping, *SIZES, "--data", "mostly.jsonl", *all_of_it]) == 0
    assert "1 of 81 records skipped (mostly.jsonl:1: messages: expected at least one" in caplog.text
    recorded = [json.loads(line) for line in (work / "mostly" / "events.jsonl").read_text().splitlines()]
    (account,) = (event for event in recorded if event["event"] == "data")
    assert {name: account[name] for name in ("records", "skipped", "cut")} == {"records": 81, "skipped": 1, "cut": 0}
    (work / "text.txt").write_text("a text\n" * 40)
    assert main([*asked, "--data", "text.txt"]) == 2
    assert "conversations are read from records, and the data are TextSource" in capsys.readouterr().err


def test_questions_in_records_are_prompts_of_rollouts_and_rewards_read_their_columns(work, kanawa):
    """The template writes the question up to where the assistant begins; a column that no template knows is kept."""
    lines = [{"prompt": [{"role": "user", "content": f"say {word}"}], "wanted": word} for word in WORDS * 20]
    (work / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (work / "rated_here.py").write_text(
        "def asked_for(rollout):\n"
        "    wanted = rollout.record['wanted']\n"
        "    assert rollout.prompt == f'user\\nsay {wanted}\\nassistant\\n', rollout.prompt\n"
        "    return float(len(set(rollout.completion) & set(rollout.record['wanted'])))\n"
    )
    sizes = ("data.sequence_length=96", "batch_size=8", "rollouts.engine.max_sequences=8", "data.validation_one_in=4")
    settings = [word for one in sizes for word in ("--set", one)]
    grpo = "grpo:reward=rated_here:asked_for,group_size=4,new_tokens=6"
    kanawa(
        "train", "model", "--modify", grpo, "--data", "questions.jsonl", "--run", "rewarded", "--steps", "2", *settings
    )
    events = [json.loads(line) for line in (work / "rewarded" / "events.jsonl").read_text().splitlines()]
    steps = [event for event in events if event["event"] == "step"]
    assert len(steps) == 2
    assert all(step["tokens"] > 0 for step in steps)
    table = next(event for event in events if event["event"] == "completions")
    assert all("say " in row["prompt"] for row in table["rows"])
    assert next(event for event in events if event["event"] == "eval")["prompts"] > 0


def test_an_environment_of_verifiers_is_trained_on(work, kanawa):
    """A module in place of the package; what the policy writes comes back in the environment's next request."""
    (work / "verifiers").mkdir()
    (work / "verifiers" / "__init__.py").touch()
    (work / "verifiers" / "v1.py").write_text("from fake_verifiers import *\n")
    sizes = ("data.sequence_length=160", "batch_size=4", "rollouts.engine.max_sequences=4", "data.validation_one_in=0")
    settings = [word for one in sizes for word in ("--set", one)]
    modify = "verifiers:group_size=4,new_tokens=64,max_turns=3"
    kanawa("train", "model", "--data", "verifiers:taskset=guessing", "--modify", modify, "--run", "played",
           "--steps", "1", *settings, "--set", "rollouts.logged_completions=4")  # fmt: skip
    events = [json.loads(line) for line in (work / "played" / "events.jsonl").read_text().splitlines()]
    (table,) = (event for event in events if event["event"] == "completions")
    for row in table["rows"]:
        assert row["prompt"].startswith("system\nbe brief\nuser\nsay ")
        assert set(row["rewards"]) == {"environment_reward"}
    (step,) = (event for event in events if event["event"] == "step")
    assert -0.2 <= step["reward"] <= 0.0 and 4 <= step["tokens"] <= 4 * 64
