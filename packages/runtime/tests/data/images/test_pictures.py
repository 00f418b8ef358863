"""Rows of pictures: exact, each once an epoch, augmented by the seed and the row alone, held-out ones never."""

import numpy as np
import pytest
from kanawa.errors import ConfigError
from kanawa.testing.data_source import DataSourceConformance
from kanawa_runtime.data.images.augment import ColorJitter, Extent, Flip, RandomCrop
from kanawa_runtime.data.images.drawn import DrawnShapes, drawn
from kanawa_runtime.data.images.draws import Draws
from kanawa_runtime.data.images.files import ImageFiles
from kanawa_runtime.data.images.proportions import grid_of
from PIL import Image

ALL = (RandomCrop.Config(), Flip.Config(), ColorJitter.Config())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    for number, shape in enumerate(["ring", "star"] * 15):
        (root / shape).mkdir(exist_ok=True)
        drawn(shape, 20, 24, Draws(number)).save(root / shape / f"{number:02d}.png")
    return root


def files(folder, **fields):
    sizes = {"height": 16, "width": 16, "class_names": ("ring", "star")}
    return ImageFiles.Config(files=("**/*",), root=str(folder), **sizes, **fields)


class TestImageFiles(DataSourceConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, folder):
        self.folder = folder

    def source(self):
        return files(self.folder, augmentations=ALL, epochs=1).build()


class TestOwnProportions(DataSourceConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, folder):
        self.folder = folder

    def source(self):
        return files(self.folder, augmentations=ALL, epochs=1, own_proportions=True, patch_size=4).build()


class TestDrawnShapes(DataSourceConformance):
    def source(self):
        return DrawnShapes.Config(augmentations=ALL, channels=1, pictures=20, held_out_pictures=3).build()


def test_each_picture_comes_once_an_epoch_in_another_order(folder):
    source = files(folder).build()
    count = source.count
    epochs = [[source.record(e * count + i)["name"] for i in range(count)] for e in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) and epochs[0] != epochs[1]
    held_out = source.held_out()
    names = [held_out.record(row)["name"] for row in range(held_out.num_rows)]
    assert names and sorted(names + epochs[0]) == sorted(item.name for item in source.items)
    assert source.held_out().digest != source.digest


def test_augmentations_depend_on_the_row_and_held_out_pictures_are_the_files(folder):
    plain, changed = (files(folder, augmentations=which).build() for which in ((), ALL))
    rows = range(plain.count)
    assert all((plain.row(r)["images"] != changed.row(r)["images"]).any() for r in rows)
    assert any((changed.row(r)["images"] != changed.row(r + 10 * plain.count)["images"]).any() for r in rows)
    other = files(folder, augmentations=ALL, seed=1).build()
    assert other.digest != changed.digest
    held_out = changed.held_out()
    row, place = held_out.row(0), held_out.record(0)
    middle = Image.open(place["address"]).resize(
        (16, 16), Image.Resampling.BICUBIC, box=(2, 0, 22, 20), reducing_gap=2.0
    )
    np.testing.assert_array_equal(row["images"], np.asarray(middle))
    assert held_out.shown(row).text == place["label"] == held_out.class_names[row["target_ids"]]


def test_random_numbers_are_the_same_everywhere():
    draws = Draws(0, 1, 2)
    assert [draws.uniform(), draws.below(1000)] == [0.1973699239902641, 105]
    assert abs(np.mean([draws.uniform() for _ in range(1000)]) - 0.5) < 0.05
    mirrored = Flip.Config(probability=0.999).build()(Image.fromarray(np.eye(4, dtype=np.uint8)), None, draws)
    np.testing.assert_array_equal(np.asarray(mirrored), np.eye(4)[:, ::-1])


def test_random_crops_lie_inside_and_have_the_asked_area():
    picture = Image.fromarray(np.tile(np.arange(200, dtype=np.uint8), (100, 1)))
    crop = RandomCrop.Config(scale=0.25, stretch=1.0).build()
    for key in range(20):
        pixels = np.asarray(crop(picture, Extent(10, 10), Draws(key))).astype(int)
        assert pixels.shape == (10, 10)
        # A square of 25 to 100 % of the area, at most as high as the picture: 70 to 100 pixels across.
        assert 60 < pixels[5, -1] - pixels[5, 0] < 95


def test_pictures_that_keep_their_proportions_get_as_many_patches_as_there_is_room_for(tmp_path):
    wide = np.random.default_rng(0).integers(0, 256, (12, 20, 3)).astype(np.uint8)
    Image.fromarray(wide).save(tmp_path / "wide.png")
    Image.fromarray(wide.transpose(1, 0, 2)).save(tmp_path / "high.png")
    kept = ImageFiles.Config(
        files=("*",), root=str(tmp_path), height=16, width=16, own_proportions=True, patch_size=4,
        class_names=("",), validation_one_in=0, shuffle=False,
    ).build()  # fmt: skip
    (tmp_path / "labels.csv").write_text("image,label\nwide.png,a\nhigh.png,a\n")
    kept = kept.config.clone().set(files=("labels.csv",), class_names=("a",)).build()
    rows = [kept.row(number) for number in range(2)]
    assert [tuple(row["grids"]) for row in rows] == [(3, 5), (5, 3)], "of 16 patches, 15 have the picture's shape"
    for row, picture in zip(rows, (wide, wide.transpose(1, 0, 2)), strict=True):
        np.testing.assert_array_equal(kept.shown(row).image, picture)
        assert not row["images"][12:, 12:].any(), "the sixteenth patch is padding"
    assert [grid_of(*size, 196) for size in ((224, 224), (1, 9000), (9000, 1), (100, 300))] == [
        (14, 14),
        (1, 196),
        (196, 1),
        (8, 24),
    ]
    with pytest.raises(ConfigError, match="own_proportions is set, and the model takes pictures of one size"):
        kept.config.clone().set(patch_size=None).freeze()
