"""A user's mesh rules win over installed ones; a file that can't be used says where."""

import pytest
from kanawa.composition.mesh_rules import find_rule
from kanawa.composition.rule_file import VARIABLE
from kanawa.composition.target import parse_target
from kanawa.errors import ConfigError

RULE = """
[[rule]]
platform = "cpu"
min_chips = 2
mesh = {data = 2, fsdp = -1}
modifiers = [{name = "remat", policy = "full"}]
"""


@pytest.fixture
def rule_file(tmp_path, monkeypatch):
    path = tmp_path / "ours.toml"
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def test_the_users_rule_wins(rule_file):
    rule_file.write_text(RULE)
    rule = find_rule(parse_target("cpu-8"), 1000)
    assert (rule.name, dict(rule.mesh)) == ("user.ours", {"data": 2, "fsdp": -1})
    assert rule.modifiers == (("remat", {"policy": "full"}),)
    assert find_rule(parse_target("cpu"), 1000) != rule


def test_a_device_that_nobody_describes_is_warned_of_once(rule_file, caplog):
    rule_file.write_text(RULE + 'devices = ["cpuu"]\n')
    for _ in range(2):
        find_rule(parse_target("cpu"), 1000)
    lines = [record.getMessage() for record in caplog.records if "cpuu" in record.getMessage()]
    assert lines == ["mesh rule user.ours is for a device 'cpuu' that no plugin describes; did you mean 'cpu'?"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[rule]]\nplatfrom = 'cpu'\n", r"ours.toml: rule 1: a mesh rule has no 'platfrom'; did you mean 'platform'"),
        ("[[rule]]\nplatform = 'cpu'\n", r"rule 1: .*mesh.*; give at least platform and mesh"),
        ("[[rule]\n", r"can't read mesh rules"),
        ("rule = 5\n", r"`rule` must be tables, one after another"),
        ("rule = [5]\n", r"`rule` must be tables, one after another"),
        ("[[rule]]\nplatform = 5\nmesh = {data = 2}\n", r"rule 1: platform is 5, expected a platform's name"),
        ("[[rule]]\nplatform = 'cpu'\nmesh = {data = 0}\n", r"mesh is {'data': 0}, expected a table of axes to sizes"),
        ("[[rule]]\nplatform = 'cpu'\nmesh = 3\n", r"mesh is 3, expected a table"),
        ("[[rule]]\ndevices = 5\n", r"devices is 5, expected a list of device names"),
        ("[[rule]]\nmin_chips = true\n", r"min_chips is True, expected a whole number"),
        ("[[rule]]\nmodifiers = [5]\n", r"modifiers is \[5\], expected a list of tables"),
    ],
)
def test_a_bad_file_says_where(rule_file, text, message):
    rule_file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        find_rule(parse_target("cpu-8"), 1000)
