"""Values and files that mean harm, or nothing: one clear error each, nothing imported on the way."""

import json
import sys
from typing import Any

import kanawa as kn
import pytest
from kanawa.config import ConfigLoadError, apply_override
from kanawa.errors import KanawaError


class Record(kn.Config):
    number: int = 0
    rate: float = 0.0
    text: str = ""
    anything: Any = None
    items: list[int] = []


WRITTEN = [
    ({"$type": 5}, r'"\$type" must hold a "module:name", got 5'),
    ({"$call": None}, r'"\$call" must hold a "module:name"'),
    ({"$call": "math:pi"}, "math:pi"),
    ({"$type": "antigravity:x"}, "not imported: Python's own library has no configs"),
    ({"$enum": "antigravity:x", "member": "a"}, "not imported: Python's own library"),
    ({"$enum": "os:system"}, "not imported: Python's own library"),
    ({"$enum": "kanawa:compose", "member": "a"}, "'kanawa:compose' is not an Enum"),
    ({"$enum": 3}, r'"\$enum" must hold a str'),
    ({"$tuple": 3}, r'"\$tuple" must hold a list'),
    ({"$dict": []}, r'"\$dict" must hold a dict'),
    ({"$callable": {}}, r'"\$callable" must hold a str'),
    ({"$float": "many"}, r'"\$float" must hold a number'),
    ({"$float": 1}, r'"\$float" must hold a str'),
    ({"$unset": []}, r'"\$unset" must hold a str'),
    ({"$type": ":"}, "can't load ':'"),
    ({"$type": ".x:y"}, "can't load '.x:y'"),
    ({"$callable": "kanawa:"}, "can't load"),
]


@pytest.mark.parametrize(("written", "told"), WRITTEN)
@pytest.mark.parametrize("way", ["file", "command line"])
def test_written_values_of_the_wrong_kind(written, told, way):
    with pytest.raises(KanawaError, match=told):
        if way == "file":
            kn.from_json({**kn.to_json(Record()), "anything": written})
        else:
            apply_override(Record(), f"anything={json.dumps(written)}")
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "changed",
    [{"$version": "1"}, {"$version": None}, {"$origins": 5}, {"$origins": {"number": 5}}, {"$origins": {"x": [[1]]}}],
)
def test_marks_of_the_wrong_kind(changed):
    with pytest.raises(ConfigLoadError, match=next(iter(changed)).replace("$", r"\$")):
        kn.from_json({**kn.to_json(Record()), **changed})


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"$tuple": [value]}
    return value


@pytest.mark.parametrize("levels", [60, 5_000])
def test_values_deep_inside_each_other_in_a_file(levels):
    with pytest.raises(ConfigLoadError, match="more than 100 deep"):
        kn.from_json({**kn.to_json(Record()), "anything": _nested(levels)})


@pytest.mark.parametrize("value", ["[" * 200 + "]" * 200, "[" * 100_000, "[" * 100_000 + "]" * 100_000, "(" * 500])
@pytest.mark.parametrize("path", ["number", "items", "rate"])
def test_values_deep_inside_each_other_on_the_command_line(path, value):
    with pytest.raises(KanawaError):
        apply_override(Record(), f"{path}={value}")


@pytest.mark.parametrize("value", ["9" * 5_000, "-" + "9" * 400, "0x" + "f" * 5_000, "9" * 400, "1e400"])
@pytest.mark.parametrize("path", ["number", "items[0]", "items"])
def test_numbers_of_thousands_of_digits(path, value):
    with pytest.raises(KanawaError) as error:
        apply_override(Record(items=[1]), f"{path}={value}")
    assert len(str(error.value)) < 12_000


@pytest.mark.parametrize("value", ["9" * 5_000, "9" * 400, "0x" + "f" * 5_000])
def test_a_float_of_thousands_of_digits(value):
    with pytest.raises(KanawaError, match="expected float"):
        apply_override(Record(), f"rate={value}")


def test_an_index_of_thousands_of_digits():
    with pytest.raises(KanawaError, match="can't read path"):
        apply_override(Record(items=[1]), f"items[{'9' * 5_000}]=1")
