"""Which pictures files hold: folders by class, with or without splits, tables that name files, tar shards."""

import csv
import io
import json
import tarfile

import numpy as np
import pyarrow
import pytest
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.images.files import ImageFiles
from kanawa_runtime.data.media_items import items_of
from PIL import Image
from pyarrow import parquet


def picture(shade):
    stream = io.BytesIO()
    Image.new("RGB", (4, 4), (shade, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


def write(root, **files):
    for name, data in files.items():
        path = root / name.replace("__", "/").replace("_png", ".png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def listed(root, *files, on_bad="stop"):
    kind = ImageFiles.Config(files=()).build().kind
    return items_of(files or ("**/*",), str(root), kind, on_bad)


def read(root, files="**/*", **fields):
    cfg = ImageFiles.Config(files=(files,), root=str(root), height=4, width=4, shuffle=False, epochs=1, **fields)
    return cfg.build()


def test_folders_are_classes_and_top_folders_splits_where_all_are(tmp_path):
    write(tmp_path, train__cat__a_png=picture(1), train__dog__b_png=picture(2), val__dog__deep__c_png=picture(3))
    items, _ = listed(tmp_path)
    assert [(item.text, item.split) for item in items] == [("cat", "train"), ("dog", "train"), ("dog", "validation")]
    source = read(tmp_path, class_names=("cat", "dog"))
    assert [int(source.held_out().row(0)[n].max()) for n in ("images", "target_ids")] == [3, 1]
    write(tmp_path, other__x__d_png=picture(4))
    assert {item.text for item in listed(tmp_path)[0]} == {"train", "val", "other"}
    write(tmp_path, e_png=picture(5))
    with pytest.raises(CorpusError, match="e.png is in no folder of a class"):
        listed(tmp_path)


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_tables_name_files_and_classes(tmp_path, kind):
    write(tmp_path, pictures__a_png=picture(1), pictures__b_png=picture(2))
    rows = [{"image": "pictures/b.png", "label": 10}, {"image": "pictures/a.png", "label": 9}]
    rows.append({"image": "pictures/gone.png", "label": 9})
    path = tmp_path / f"all.{kind}"
    with path.open("w", newline="") as file:
        if kind == "jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            table = csv.DictWriter(file, ["image", "label"])
            table.writeheader()
            table.writerows(rows)
    with pytest.raises(CorpusError, match=rf"all.{kind}:\d: image: .*gone.png isn't there; paths are relative"):
        listed(tmp_path, path.name)
    source = read(tmp_path, path.name, on_bad="skip", validation_one_in=0, class_names=("9", "10"))
    assert source.account()["skipped"] == 1 and "gone.png" in source.account()["reasons"][0]
    # The order is that of the table; classes that are numbers come in the order of numbers.
    assert [(int(r["images"].max()), int(r["target_ids"])) for r in map(source.row, (0, 1))] == [(2, 1), (1, 0)]


def test_tables_hold_the_bytes_of_pictures(tmp_path):
    table = pyarrow.table(
        {"image": [{"bytes": picture(1), "path": "x.png"}, {"bytes": picture(2), "path": None}], "label": [0, 1]}
    )
    parquet.write_table(table, tmp_path / "all.parquet")
    source = read(tmp_path, "all.parquet", validation_one_in=0, class_names=("0", "1"))
    assert [(int(r["images"].max()), int(r["target_ids"])) for r in map(source.row, (0, 1))] == [(1, 0), (2, 1)]
    parquet.write_table(pyarrow.table({"image": [7], "label": [0]}), tmp_path / "bad.parquet")
    with pytest.raises(CorpusError, match="bad.parquet#1: image is int, expected the path of a picture or its bytes"):
        listed(tmp_path, "bad.parquet")


def test_a_table_without_the_field_says_which_it_has(tmp_path):
    (tmp_path / "all.jsonl").write_text('{"file": "a.png", "labels": 1, "image": "a.png"}\n')
    with pytest.raises(CorpusError, match="all.jsonl:1: no label, did you mean 'labels'|all.jsonl:1: no label"):
        listed(tmp_path)


def test_shards_hold_samples_whose_members_share_a_name(tmp_path):
    def add(archive, name, data):
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))

    with tarfile.open(tmp_path / "0.tar", "w") as archive:
        for number, label in enumerate((b"cat", b"dog\n")):
            add(archive, f"s/{number}.png", picture(number + 1))
            add(archive, f"s/{number}.cls", label)
        add(archive, "s/2.png", picture(3))
        add(archive, "s/2.json", b'{"label": "cat"}')
        add(archive, "s/3.png", picture(4))
    with pytest.raises(CorpusError, match=r"0.tar:s/3: the sample has no a class \(.cls, or label in .json\)"):
        listed(tmp_path)
    source = read(tmp_path, on_bad="skip", validation_one_in=0, class_names=("cat", "dog"))
    found = [(int(row["images"].max()), int(row["target_ids"])) for row in map(source.row, range(3))]
    assert found == [(1, 0), (2, 1), (3, 0)] and source.num_rows == 3


def test_no_pictures_and_unknown_classes_are_explained(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(CorpusError, match=r"no picture is in .*, which has notes.txt: expected folders of pictures"):
        listed(tmp_path)
    write(tmp_path, cat__a_png=picture(1), cow__a_png=picture(1))
    with pytest.raises(CorpusError, match="class 'cow' is none of the 2 of data.class_names \\(cat, dog\\)"):
        read(tmp_path, class_names=("cat", "dog"), validation_one_in=0).row(0)


def test_the_digest_is_that_of_names_sizes_and_classes(tmp_path):
    write(tmp_path, cat__a_png=picture(1), dog__b_png=picture(2))
    first = read(tmp_path).digest
    assert read(tmp_path).digest == first
    moved = tmp_path.with_name("elsewhere")
    tmp_path.rename(moved)
    assert read(moved).digest == first
    write(moved, dog__c_png=picture(3))
    assert read(moved).digest != first
    np.testing.assert_array_equal(read(moved, validation_one_in=0).row(0)["images"][0, 0], [1, 0, 0])
