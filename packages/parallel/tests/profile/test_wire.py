"""Messages are read without their schema, and what is cut off is said."""

import pytest
from kanawa_parallel.profile.wire import fields, integers, text


def test_numbers_strings_and_messages_are_found_by_field():
    # Field 1 = 150, field 2 = "testing", field 3 = {1: 150}, field 4 packed = [3, 270, 86942].
    message = bytes.fromhex("089601120774657374696e671a030896012206038e029ea705")
    found = fields(message)
    assert found[1] == [150]
    assert text(found[2]) == "testing"
    assert fields(found[3][0])[1] == [150]
    assert integers(found[4]) == [3, 270, 86942]
    assert found[9] == []


@pytest.mark.parametrize("message", ["08", "1207746573", "0b", "0d0102"], ids=["number", "string", "group", "fixed"])
def test_what_is_cut_off_or_unknown_is_an_error(message):
    with pytest.raises(ValueError, match=r"cut off|unknown wire type"):
        fields(bytes.fromhex(message))
