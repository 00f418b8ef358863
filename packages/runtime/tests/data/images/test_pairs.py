"""Pairs of a picture and its text: from tables, files beside each other and shards; labels' texts; captions drawn."""

import io
import json
import tarfile

import numpy as np
import pytest
from kanawa.contracts import ImageTextBatch, Model
from kanawa.testing.data_source import DataSourceConformance
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.images.drawn_captions import LABELS, UNSEEN, DrawnCaptions
from kanawa_runtime.data.images.pairs import ImageLabelTexts, ImageTexts
from kanawa_runtime.data.tokenizers.byte_alphabet import BOS_ID, EOS_ID, PAD_ID
from kanawa_runtime.train.trainer import Trainer
from PIL import Image

SIZES = {"height": 4, "width": 4, "sequence_length": 8}


def picture(shade):
    stream = io.BytesIO()
    Image.new("RGB", (4, 4), (shade, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def table(tmp_path):
    rows = []
    for number in range(8):
        (tmp_path / f"{number}.png").write_bytes(picture(number + 1))
        rows.append({"image": f"{number}.png", "text": f"é {number}"})
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "pairs.jsonl"


def read(path, kind=ImageTexts, **fields):
    return kind.Config(files=(path.name,), root=str(path.parent), **{**SIZES, "validation_one_in": 3, **fields}).build()


class Towers(Model):
    """Takes pictures of any size."""

    batch = ImageTextBatch

    def forward(self, batch):
        del batch


class TestImageTexts(DataSourceConformance):
    @pytest.fixture(autouse=True)
    def _table(self, table):
        self.table = table

    def source(self):
        return read(self.table)


class TestDrawnCaptions(DataSourceConformance):
    def source(self):
        return DrawnCaptions.Config(pictures=20, held_out_pictures=3).build()


def test_a_row_is_the_picture_and_its_text_between_begin_and_end(table):
    row = read(table, shuffle=False, validation_one_in=0).row(3)
    text = [BOS_ID, *"é 3".encode(), EOS_ID]
    assert row["input_ids"].tolist() == [*text, PAD_ID, PAD_ID] and row["images"].max() == 4
    assert row["segment_ids"].tolist() == [1] * 6 + [0] * 2
    short = read(table, shuffle=False, validation_one_in=0, sequence_length=5)
    assert short.row(3)["input_ids"].tolist() == [*text[:4], EOS_ID], "what is too long loses the text's end"
    assert short.shown(short.row(3)).text == "é "


@pytest.mark.parametrize("kind", ["beside", "shard"])
def test_pairs_beside_each_other_and_in_shards_are_those_of_a_table(table, kind):
    expected = [read(table, validation_one_in=0).once().row(row) for row in range(8)]
    table.unlink()
    if kind == "beside":
        for number in range(8):
            table.with_name(f"{number}.txt").write_text(f"é {number}\n")
        found = read(table.with_name("*"), validation_one_in=0).once()
    else:
        with tarfile.open(table.with_name("0.tar"), "w") as archive:
            for number in range(8):
                for name, data in ((f"{number}.png", picture(number + 1)), (f"{number}.txt", f"é {number}".encode())):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
        found = read(table.with_name("0.tar"), validation_one_in=0).once()
    for row in range(8):
        for name, array in expected[row].items():
            np.testing.assert_array_equal(found.row(row)[name], array)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"image": "0.png"}', "pairs.jsonl:9: no text"),
        ('{"image": "0.png", "text": " "}', "pairs.jsonl:9: text: the text is empty"),
        ('{"image": "gone.png", "text": "a"}', "pairs.jsonl:9: image: .*gone.png isn't there"),
        ('{"image": "0.png", "text": ["a"]}', "pairs.jsonl:9: text: found list, expected text"),
        ("{", "pairs.jsonl:9: "),
    ],
)
def test_pairs_that_do_not_match_stop_or_are_counted(table, line, problem):
    table.write_text(table.read_text() + line + "\n")
    with pytest.raises(CorpusError, match=problem):
        read(table).row(0)
    account = read(table, on_bad="skip").account()
    assert (account["pictures"], account["skipped"]) == (8, 1)


def test_texts_that_are_not_utf8_and_tables_without_rows_are_refused_and_what_is_left_out_is_logged(table, caplog):
    for number in range(8):
        (table.parent / f"{number}.txt").write_bytes("caf\xe9".encode("latin1" if number == 5 else "utf-8"))
    beside = {"files": ("*.png", "*.txt"), "root": str(table.parent)}
    with pytest.raises(CorpusError, match=r"5\.png: its text isn't UTF-8: .*iconv"):
        _ = ImageTexts.Config(**SIZES, **beside).build().items
    assert len(ImageTexts.Config(**SIZES, **beside, on_bad="skip").build().items) == 7
    assert "1 rows or files are left out, 7 pictures are used; the first left out: " in caplog.text
    table.write_text("")
    with pytest.raises(CorpusError, match=r"no row is in .*pairs\.jsonl; expected one a picture"):
        _ = read(table).items


def test_a_column_of_another_name_is_one_that_data_can_name(table):
    table.write_text(table.read_text().replace('"text"', '"caption"'))
    with pytest.raises(CorpusError, match=r"no text; .*row has image, caption \(--data FILE:text_field=NAME reads"):
        _ = read(table).items
    assert len(read(table, text_field="caption").items) == 8


def test_texts_of_classes_are_labels_by_their_prompt(tmp_path):
    for number, name in enumerate(["cat", "dog", "cat"]):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / f"{number}.png").write_bytes(picture(number + 1))
    experiment = Trainer.Config(
        data=ImageTexts.Config(files=(), **SIZES | {"sequence_length": 16}), model=Towers.Config()
    )
    assert ImageTexts.Config.of_files(str(tmp_path), experiment) is None, "pictures without texts have classes"
    made = ImageLabelTexts.Config.of_files(f"{tmp_path}:prompt=a {{}}!", experiment).build()
    assert (made.class_names, made.label_texts) == (("cat", "dog"), ("a cat!", "a dog!"))
    rows = [made.once().row(row) for row in range(3)]
    assert [int(row["target_ids"]) for row in rows] == [0, 0, 1]
    for row in rows:
        np.testing.assert_array_equal(row["label_ids"][row["target_ids"]], row["input_ids"])
    assert made.config.clone().set(prompt="the {}").build().digest != made.digest


def test_held_out_shapes_have_colours_that_training_never_showed_them_in():
    source = DrawnCaptions.Config(pictures=300, held_out_pictures=40).build()
    seen, unseen = ({LABELS[part.row(row)["target_ids"]] for row in range(part.count)} for part in
                    (source.once("train"), source.held_out()))  # fmt: skip
    assert unseen == set(UNSEEN) and not seen & unseen
    assert {label.colour for label in unseen} <= {label.colour for label in seen}
    assert {label.shape for label in unseen} <= {label.shape for label in seen}
    row = source.row(0)
    label = source.label_texts[row["target_ids"]].removeprefix("a ")
    assert label in source.shown(row).text
