"""What is no picture, is cut off, too large or of the wrong kind stops the run with its place, or is left out."""

import io
import struct
import zlib

import numpy as np
import pytest
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.images.decode import PictureError, decoded
from kanawa_runtime.data.images.files import ImageFiles
from PIL import Image

MOST = 10_000


def saved(mode="RGB", size=(8, 6), kind="PNG", color=None, **options):
    stream = io.BytesIO()
    picture = Image.new(mode, size, color) if color is not None else Image.effect_noise(size, 90).convert(mode)
    picture.save(stream, kind, **options)
    return stream.getvalue()


def png(width, height, bits, data):
    """Returns a PNG of colours with any header."""
    chunk = lambda kind, body: struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))  # noqa: E731
    header = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def bomb(width, height):
    """Returns a PNG whose header promises that many pixels and whose data hold none."""
    return png(width, height, 8, b"")


def deep_colours():
    """Returns a PNG of 4 x 4 pixels of 16 bits a channel, which Pillow opens as if they had 8."""
    return png(4, 4, 16, zlib.compress(bytes(4 * 25)))


BAD = {
    "empty": (b"", "the file is empty"),
    "text": (b"<html>404</html>", "no picture: it begins with b'<html>40'"),
    "cut": (saved(kind="JPEG", size=(64, 64))[:-200], "damaged or cut off"),
    "bomb": (bomb(200, 200), "200 x 200 pixels, more than max_pixels=10,000"),
    "larger bomb": (bomb(60_000, 60_000), "3,600,000,000 pixels, more than max_pixels="),
    "deep": (saved("I;16", color=40_000), "more than 8 bits"),
    "deep in colour": (deep_colours(), r"more than 8 bits \(Pillow's mode RGB\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_it_is_refused_with_a_reason(name):
    data, reason = BAD[name]
    with pytest.raises(PictureError, match=reason):
        decoded(data, 3, MOST)


@pytest.mark.parametrize("mode", ["L", "P", "LA", "RGBA", "CMYK", "1"])
def test_other_channels_are_converted_or_refused_as_asked(mode):
    data = saved(mode, kind="JPEG" if mode == "CMYK" else "PNG")
    assert decoded(data, 3, MOST).mode == "RGB" and decoded(data, 1, MOST).mode == "L"
    with pytest.raises(PictureError, match=f"its channels are {mode}, expected RGB"):
        decoded(data, 3, MOST, convert=False)


def test_what_is_transparent_is_white_and_a_photograph_stands_upright():
    clear = decoded(saved("RGBA", color=(200, 0, 0, 0)), 3, MOST)
    assert np.asarray(clear).min() == 255
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by a quarter
    assert decoded(saved(size=(8, 6), kind="JPEG", exif=exif), 3, MOST).size == (6, 8)


@pytest.fixture
def folder(tmp_path):
    for name, data in {"a/0": saved(), "a/1": BAD["cut"][0], "b/0": saved(), "b/1": b"no picture"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.png").write_bytes(data)
    return tmp_path


def test_a_bad_picture_stops_the_run_with_its_row_and_file(folder):
    source = ImageFiles.Config(files=("**/*",), root=str(folder), height=4, width=4, validation_one_in=0, shuffle=False)
    rows = source.clone().build()
    assert rows.row(0)["loss_weights"] == 1
    with pytest.raises(CorpusError, match=r"row 1: .*a/1.png: damaged.*data.on_bad=skip"):
        rows.row(1)


def test_left_out_it_weighs_nothing_and_other_rows_stay_what_they_are(folder, caplog):
    fields = {"files": ("**/*",), "root": str(folder), "height": 4, "width": 4, "validation_one_in": 0}
    source = ImageFiles.Config(**fields, shuffle=False, epochs=2, on_bad="skip").build()
    rows = [source.row(index) for index in range(8)]
    assert [float(row["loss_weights"]) for row in rows] == [1, 0, 1, 0] * 2
    assert not rows[1]["images"].any() and source.num_left_out == 4
    assert "row 1 is left out, the 1. so far:" in caplog.text and "b/1.png: no picture" in caplog.text
