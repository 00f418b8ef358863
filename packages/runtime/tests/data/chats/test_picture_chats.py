"""Conversations about pictures: where pictures stand, what is learned, and what is refused."""

import base64
import io
import json

import numpy as np
import pytest
from kanawa.errors import UsageError
from kanawa.testing.data_source import DataSourceConformance
from kanawa_runtime.data.chats.fine_tuning import SupervisedFineTuning
from kanawa_runtime.data.chats.pictures import PictureChats
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.images.drawn_questions import DrawnQuestions
from PIL import Image

MODEL = {"tokens_per_picture": 4, "height": 4, "width": 4}


def png(shade):
    stream = io.BytesIO()
    Image.new("RGB", (6, 4), (shade, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


def asked(*parts, answer="red"):
    text = {"type": "text", "text": "which colour?"}
    return {"messages": [{"role": "user", "content": [*parts, text]}, {"role": "assistant", "content": answer}]}


PATH = {"type": "image", "path": "a.png"}
URL = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(png(9)).decode()}"}}


@pytest.fixture
def chats(source, tmp_path):
    """Returns what makes a source of records about a.png (shade 7)."""
    plain = source([asked(answer="no pictures")])
    (tmp_path / "a.png").write_bytes(png(7))
    # The last of the tokenizer's own that the template doesn't write.
    token = max(plain.tokenizer.special_names)

    def make(records, **fields):
        (tmp_path / "seen.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        sizes = {"sequence_length": 128, "validation_one_in": 0, "shuffle": False, **MODEL}
        names = {"files": ("seen.jsonl",), "root": str(tmp_path), "tokenizer_file": plain.config.tokenizer_file}
        return PictureChats.Config(**{**names, **sizes, "image_token_id": token, **fields}).build()

    return make


def test_pictures_stand_where_their_parts_do_and_the_answer_alone_is_learned(chats):
    rows = chats([asked(PATH, URL), asked(answer="none to see"), asked(URL)], most_pictures=2)
    token = rows.config.image_token_id
    row = rows.row(0)
    assert row["images"][:, 0, 0, 0].tolist() == [7, 9]
    assert (row["input_ids"] == token).sum() == 8
    learned = row["loss_weights"] > 0
    assert rows.tokenizer.decode(row["target_ids"][learned]).startswith("red")
    assert not (row["target_ids"][learned] == token).any()
    assert (
        row["target_ids"][:-1][row["segment_ids"][1:] > 0] == row["input_ids"][1:][row["segment_ids"][1:] > 0]
    ).all()
    assert not rows.row(1)["images"].any()
    assert rows.row(2)["images"][:, 0, 0, 0].tolist() == [9, 0]


def test_records_of_llava_name_pictures_beside_the_conversation(chats):
    mark = chats([asked(PATH)])._text.mark
    said = [{"from": "human", "value": f"{mark}\nwhich colour?"}, {"from": "gpt", "value": "red"}]
    row = chats([{"image": "a.png", "conversations": said}]).row(0)
    assert row["images"][0, 0, 0, 0] == 7


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (asked({"type": "image", "path": "no.png"}), r"seen.jsonl:1: .*no.png"),
        (
            asked({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}),
            "no picture: it begins with",
        ),
        (asked({"type": "image_url", "image_url": {"url": "data:image/png,hi"}}), "no data URL in base64"),
        (asked({"type": "image"}), "a part of type image has no path"),
        (asked(PATH, PATH), r"seen.jsonl:1: it has 2 pictures, more than data.most_pictures \(1\)"),
        ({**asked(), "image": "a.png"}, "1 pictures, and 0 places"),
    ],
)
def test_what_is_wrong_is_named_and_may_be_left_out(chats, record, words):
    with pytest.raises(CorpusError, match=words):
        chats([record]).row(0)
    rows = chats([record, asked(PATH)], on_bad="skip")
    assert not rows.row(0)["loss_weights"].any()
    assert rows.row(1)["loss_weights"].any()


#: As Gemma 3's and Qwen3-VL's: contents are parts, and the template writes what stands for a picture.
IN_PARTS = """{% for message in messages %}{{ "<|im_start|>" + message.role + "\n" }}
{%- if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}
{%- if part.type == "image" %}{{ "MARK" }}{% else %}{{ part.text | trim }}{% endif %}
{%- endfor %}{% endif %}{{ "<|im_end|>\n" }}{% endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\n" }}{% endif %}"""


@pytest.fixture
def in_parts(chats, tmp_path):
    """Returns what makes a source whose template takes parts, and whose model writes pictures its own way."""
    names = chats([asked(PATH)]).tokenizer.special_names
    *_, begin, token = sorted(names)
    file = tmp_path / "parts.jinja"
    file.write_text(IN_PARTS.replace("MARK", names[begin]))

    def make(records, **fields):
        written = ("\n\n", begin, token, begin, "\n\n")
        return chats(records, template_file=str(file), mark_id=begin, written=written, most_pictures=3, **fields)

    return make, begin


SECOND = {"type": "text", "text": " and then "}


def test_turns_with_pictures_between_their_texts_are_written_as_the_model_reads_them(in_parts):
    make, begin = in_parts
    said = asked(PATH, SECOND, URL)["messages"]
    said += [{"role": "user", "content": [{"type": "text", "text": "now?"}, PATH]}]
    said += [{"role": "assistant", "content": "blue"}]
    rows = make([{"messages": said}], sequence_length=256)
    row = rows.row(0)
    ids = row["input_ids"][row["segment_ids"] > 0]
    token, names = rows.config.image_token_id, rows.tokenizer.special_names
    assert (ids == token).sum() == 3 * 4 and (ids == begin).sum() == 3 * 2
    assert row["images"][:, 0, 0, 0].tolist() == [7, 9, 7]
    mark, single = names[begin], ids[np.append(True, (ids[1:] != token) | (ids[:-1] != token))]
    picture = f"\n\n{mark}{names[token]}{mark}\n\n"
    asked_first = f"{picture}and then{picture}which colour?<|im_end|>"
    text = "".join(names.get(i) or rows.tokenizer.decode([i]) for i in single.tolist())
    assert asked_first in text and f"now?{picture}<|im_end|>" in text
    learned = row["target_ids"][row["loss_weights"] > 0]
    assert (
        "".join(names.get(i) or rows.tokenizer.decode([i]) for i in learned.tolist()) == "red<|im_end|>blue<|im_end|>"
    )
    last = make([{"messages": said}], sequence_length=256, answers="last").row(0)
    assert rows.tokenizer.decode(last["target_ids"][last["loss_weights"] > 0]).startswith("blue")


def test_tokens_that_the_tokenizer_lacks_are_named(chats):
    with pytest.raises(UsageError, match="the model writes token 9999 for a picture"):
        chats([asked(PATH)], written=(9999,)).row(0)
    with pytest.raises(UsageError, match="the model writes token 9998 for a picture.*its special tokens are"):
        chats([asked(PATH)], image_token_id=9998).row(0)


def test_a_mark_in_a_text_is_a_place_without_a_picture(chats):
    rows = chats([asked(PATH)])
    said = asked(PATH, {"type": "text", "text": f"and {rows._text.mark}"})
    with pytest.raises(CorpusError, match="seen.jsonl:1: it has 1 pictures, and 2 places"):
        chats([said]).row(0)


def test_an_answer_past_the_row_is_refused(chats):
    with pytest.raises(CorpusError, match="no answer begins in the first 16"):
        chats([asked(PATH)], sequence_length=16).row(0)


def test_sft_leaves_the_rows_and_sets_what_is_learned(chats):
    cfg = SupervisedFineTuning.Config(answers="last").build()._rows(chats([asked(PATH)]).config)
    assert isinstance(cfg, PictureChats.Config)
    assert cfg.answers == "last"


class TestDrawnQuestions(DataSourceConformance):
    def source(self):
        sizes = {"image_token_id": 259, "tokens_per_picture": 64}
        return DrawnQuestions.Config(pictures=8, held_out_pictures=3, **sizes).build()


def test_answers_are_of_what_is_drawn():
    rows = DrawnQuestions.Config(image_token_id=259, tokens_per_picture=64, shuffle=False).build()
    for number in range(20):
        picture, question, answer = rows.asked(number)
        row = rows.row(number)
        np.testing.assert_array_equal(row["images"][0], np.asarray(picture))
        learned = row["target_ids"][row["loss_weights"] > 0]
        assert rows.tokenizer.decode(learned[:-1]) == answer
        assert question.startswith("what")
