"""What `--modify` text means."""

import pytest
from kanawa.composition.modifiers import parse_modifier
from kanawa.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "name", "fields"),
    [
        ("moe", "moe", {}),
        ("moe:num_experts=4,top_k=2", "moe", {"num_experts": "4", "top_k": "2"}),
        ("some-dist:moe", "some-dist:moe", {}),
        ("some-dist:moe:top_k=1", "some-dist:moe", {"top_k": "1"}),
        ('mesh:axes={"fsdp":-1,"data":2}', "mesh", {"axes": '{"fsdp":-1,"data":2}'}),
        ("mesh:axes={'a=b': 1}", "mesh", {"axes": "{'a=b': 1}"}),
    ],
)
def test_name_and_fields_are_told_apart(text, name, fields):
    assert parse_modifier(text) == (name, fields)


@pytest.mark.parametrize(("text", "found"), [("moe=3", "moe=3"), ("moe:a,b=3", "a")])
def test_what_is_neither_is_named(text, found):
    with pytest.raises(ConfigError, match=f"expected NAME or NAME:key=value.*found '{found}'"):
        parse_modifier(text)
