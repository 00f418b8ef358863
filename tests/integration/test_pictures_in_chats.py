"""Chats about pictures tune Gemma 3 and Qwen3-VL: losses fall, alike on eight devices, and wrong data are refused."""

import json
import shutil
from pathlib import Path

import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.cli.main import main
from kanawa.errors import KanawaError
from kanawa_runtime.data.chats.pictures import PictureChats
from kanawa_runtime.data.images.drawn import drawn
from kanawa_runtime.data.images.draws import Draws
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.train.loop import Loop

FIXTURES = Path(__file__).parents[2] / "packages" / "layers" / "tests" / "fixtures"
WORDS = (
    "user", "assistant", "what", "is", "here", "and", "there", "now", "first", "second",
    "a", "ring", "star", "circle", "shape", "red", "?", ".", ":",
)  # fmt: skip
#: What the templates of released models write for a part that is a picture, and the ids that the small models have.
FAMILIES = {
    "gemma3_vision": ("<begin>", {"<end>": 61, "<begin>": 62, "<image>": 63}),
    "qwen3_vl": ("<begin><image><end>", {"<end>": 60, "<begin>": 61, "<image>": 63}),
}
TEMPLATE = """{% for message in messages %}{{ message.role + " : " }}
{%- if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}
{%- if part.type == "image" %}{{ "MARK" }}{% else %}{{ " " + (part.text | trim) + " " }}{% endif %}
{%- endfor %}{% endif %}{{ "</s>" }}{% endfor %}
{%- if add_generation_prompt %}{{ "assistant : " }}{% endif %}"""


def put_tokenizer(folder, family):
    """Writes a tokenizer of words, special tokens at the model's own ids, and a template that takes parts."""
    mark, names = FAMILIES[family]
    special = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, **names}
    vocab = {**special, **{word: 4 + i for i, word in enumerate(WORDS)}}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": i, "content": name, **flags, "special": True} for name, i in special.items()]
    made = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(added, key=lambda token: token["id"]),
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(made))
    settings = {"eos_token": "</s>", "bos_token": "<s>", "chat_template": TEMPLATE.replace("MARK", mark)}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        shutil.copytree(FIXTURES / family, root / family)
        put_tokenizer(root / family, family)
    config = json.loads((root / "qwen3_vl" / "config.json").read_text())
    config["vision_config"]["image_size"] = [24, 16]
    (root / "qwen3_vl" / "config.json").write_text(json.dumps(config))
    return root


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    """Conversations of two turns, with pictures between the words of the first."""
    root = tmp_path_factory.mktemp("chats")
    shapes = ("ring", "star", "circle")
    for shape in shapes:
        drawn(shape, 16, 24, Draws(1)).save(root / f"{shape}.png")

    def part(shape):
        return {"type": "image", "path": f"{shape}.png"}

    def text(words):
        return {"type": "text", "text": words}

    rows = []
    for number in range(24):
        one, two, three = (shapes[(number + step * (1 + number // 3)) % 3] for step in range(3))
        said = [
            {"role": "user", "content": [text("first"), part(one), text("second"), part(two), text("what is here ?")]},
            {"role": "assistant", "content": f"a {one} and a {two}"},
            {"role": "user", "content": [part(three), text("now ?")]},
            {"role": "assistant", "content": f"a {three}"},
        ]
        rows.append({"messages": said})
    file = root / "chat.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def composed(folders, family, chat, *modifiers, on="cpu", more=()):
    settings = ["batch_size=8", "steps=12", "data.sequence_length=64", "data.most_pictures=3", *more]
    settings += ["learner.schedule.peak=0.01", "learner.schedule.warmup_fraction=0.1"]
    return kn.compose(
        str(folders / family), on, ["sft", *modifiers], overrides=settings, data=f"{chat}:validation_one_in=6"
    )


def losses(composition, run, steps=12, initial=None):
    Loop(composition, run, steps=steps, initial=initial).execute()
    return [e["loss"] for e in read_events(run / "events.jsonl") if e["event"] == "step"]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.mark.nightly
def test_turns_with_pictures_between_are_learned_alike_on_eight_devices(folders, family, chat, tmp_path):
    folder = folders / family
    plain = losses(composed(folders, family, chat), tmp_path / "plain", initial=folder)
    assert plain[-1] < 0.7 * plain[0], plain
    modifiers = ["remat:policy=full", 'mesh:axes={"data":2,"fsdp":4}']
    wide = losses(composed(folders, family, chat, *modifiers, on="cpu-8"), tmp_path / "wide", steps=3, initial=folder)
    np.testing.assert_allclose(wide, plain[:3], rtol=2e-5)


@pytest.mark.nightly
def test_adapters_of_the_language_model_learn_alone(folders, family, chat, tmp_path):
    folder = folders / family
    before = flatten_paths(kn.open(folder).params)
    cfg = composed(folders, family, chat, 'lora:rank=4,targets=["**.language.**"]')
    factors = losses(cfg, tmp_path / "lora", initial=folder)
    assert factors[-1] < factors[0]
    after = flatten_paths(kn.open(tmp_path / "lora").params)
    changed = {path for path in after if path not in before or not np.allclose(before[path], after[path], rtol=1e-2)}
    assert changed and all(path.startswith("language.") and ".adapter." in path for path in changed), changed


def test_rows_are_as_the_family_writes_pictures(folders, family, chat, capsys):
    cfg = composed(folders, family, chat).config
    assert isinstance(cfg.data, PictureChats.Config)
    rows = cfg.data.build()
    row = rows.row(0)
    ids = row["input_ids"][row["segment_ids"] > 0].tolist()
    _, names = FAMILIES[family]
    count = {"gemma3_vision": 4, "qwen3_vl": 6}[family]
    run = [names["<begin>"], *[names["<image>"]] * count, names["<end>"]]
    places = [i for i in range(len(ids)) if ids[i : i + len(run)] == run]
    assert len(places) == 3 and ids.count(names["<image>"]) == 3 * count
    arguments = ["data", "inspect", str(folders / family), "--data", str(chat), "--modify", "sft", "--rows", "1"]
    settings = ["--set", "data.sequence_length=64", "--set", "data.most_pictures=3", "--sample", "4"]
    assert main([*arguments, *settings]) == 0
    out = capsys.readouterr().out
    for picture in (1, 2, 3):
        assert f"picture {picture}, {24 if family == 'qwen3_vl' else 16} x 16 pixels" in out
    assert "user : first" in out and "assistant" in out


def test_data_that_do_not_fit_are_refused_with_their_place(folders, family, chat, tmp_path):
    cfg = composed(folders, family, chat, more=["data.most_pictures=2"]).config
    with pytest.raises(KanawaError, match=r"chat.jsonl:\d+: it has 3 pictures, more than data.most_pictures \(2\)"):
        cfg.data.build().row(0)
    with pytest.raises(KanawaError, match="no answer begins in the first 8"):
        composed(folders, family, chat, more=["data.sequence_length=8"]).config.data.build().row(0)
    bare = tmp_path / "bare"
    shutil.copytree(folders / family, bare)
    tokenizer = json.loads((bare / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["id"] != 63]
    del tokenizer["model"]["vocab"]["<image>"]
    (bare / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(
        KanawaError, match="the model writes token 63 for a picture, and .* has no special token of this"
    ):
        composed(tmp_path, "bare", chat).config.data.build().row(0)
