"""The safetensors format against the reference implementation, and invalid files."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from kanawa_layers.convert.errors import SafetensorsError
from kanawa_layers.convert.safetensors_file import read_header, write_file
from safetensors.numpy import load_file, save_file

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b.weight": np.array([1.5, -2.0], np.float16),
    "empty": np.zeros((0, 4), np.float32),
    "scalar": np.array(7, np.int64),
}


def test_reads_what_the_reference_writes(tmp_path):
    save_file(ARRAYS, tmp_path / "x.safetensors", {"format": "np"})
    actual = read_header(tmp_path / "x.safetensors")
    assert set(actual) == set(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(actual[name].read(), array)
        assert actual[name].read().dtype == array.dtype


def test_the_reference_reads_what_we_write(tmp_path):
    names = {"float32": "F32", "float16": "F16", "int64": "I64"}
    layout = {name: (names[array.dtype.name], array.shape) for name, array in ARRAYS.items()}
    write_file(tmp_path / "x.safetensors", layout, ARRAYS.__getitem__, {"format": "pt"})
    actual = load_file(tmp_path / "x.safetensors")
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(actual[name], array)


def test_bfloat16_and_fp8_keep_their_bits(tmp_path):
    arrays = {
        "BF16": np.arange(8, dtype=np.uint16).view(ml_dtypes.bfloat16),
        "F8_E4M3": np.arange(8, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn),
    }
    write_file(tmp_path / "x", {k: (k, v.shape) for k, v in arrays.items()}, arrays.__getitem__)
    for name, entry in read_header(tmp_path / "x").items():
        assert entry.read().tobytes() == arrays[name].tobytes()


def _file(header: object, body: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "-1 bytes long"),
        (b"\0\0\0", "-1 bytes long"),
        (_file({}, length=1 << 60), "bytes long, but the file has"),
        (_file(b"{broken"), "isn't JSON"),
        (_file([1]), "a list, expected an object"),
        (_file(b'{"a": 1, "a": 2}'), "occurs twice"),
        (_file({"a": {"dtype": "F32"}}), "no valid dtype, shape and data_offsets"),
        (_file({"a": {**TENSOR, "dtype": "F4"}}, bytes(8)), "dtype 'F4'; known: F64"),
        (_file({"a": {**TENSOR, "shape": [-2]}}, bytes(8)), r"shape \(-2,\)"),
        (_file({"a": {**TENSOR, "shape": [3]}}, bytes(8)), "can't take 8 bytes"),
        (_file({"a": {**TENSOR, "data_offsets": [8, 16]}}, bytes(16)), "starts at byte"),
        (_file({"a": TENSOR}, bytes(4)), "it was cut short, or grew"),
        (_file({"a": TENSOR}, bytes(12)), "it was cut short, or grew"),
    ],
)
def test_a_broken_file_says_what_is_wrong(tmp_path, content, says):
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(SafetensorsError, match=says) as error:
        read_header(file)
    assert str(file) in str(error.value)
