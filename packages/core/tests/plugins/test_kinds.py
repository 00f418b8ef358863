"""Kinds of component are open: whoever looks components up declares their kind."""

import pytest
from kanawa.cli.main import main
from kanawa.plugins import Kind, host
from kanawa.plugins.catalog import load_value
from kanawa.plugins.kinds import CORE_KINDS
from kanawa.testing.plugin import role_problem

DECLARES = """
from kanawa.plugins import Kind, hookimpl

@hookimpl
def kanawa_kinds():
    return [Kind("spices", "what makes it hot", subclass_of="{role}")]

class Chili(dict): ...
class Sugar: ...
"""
GROUPS = {
    "kanawa.plugins": ["spice = fake_spice"],
    "kanawa.spices": ["chili = fake_spice:Chili", "sugar = fake_spice:Sugar"],
}


def test_the_roles_of_cores_kinds_exist():
    for kind in CORE_KINDS:
        for role in filter(None, (kind.subclass_of, kind.instance_of)):
            assert isinstance(load_value(role), type), kind


def test_a_strangers_kind_is_listed_and_checked(fake_distribution, capsys):
    fake_distribution("fake-spice", GROUPS, {"fake_spice": DECLARES.format(role="builtins:dict")})
    assert host().kinds()["spices"].help == "what makes it hot"
    assert main(["list", "spices"]) == 0
    assert "chili" in capsys.readouterr().out
    chili, sugar = host().components("spices")
    assert role_problem(chili) == ""
    assert "expected a subclass of dict" in role_problem(sugar)


def test_two_meanings_of_one_kind_are_a_warning_that_names_both(fake_distribution, caplog):
    for name, role in (("fake-spice", "builtins:dict"), ("fake-other", "builtins:list")):
        module = name.replace("-", "_")
        fake_distribution(name, {"kanawa.plugins": [f"{name} = {module}"]}, {module: DECLARES.format(role=role)})
    assert host().kinds()["spices"].subclass_of == "builtins:list"
    (line,) = [r.message for r in caplog.records if "differently" in r.message]
    assert "fake-other:fake-other and fake-spice:fake-spice declare kind 'spices' differently" in line
    assert line.endswith("KANAWA_SKIP_PLUGINS=fake-spice:fake-spice leaves the other out")


@pytest.mark.parametrize("bad", [("my-kind", ""), ("", ""), ("mine", "no_colon")])
def test_what_cannot_be_a_kind_is_refused(bad):
    with pytest.raises(ValueError, match="kind"):
        Kind(bad[0], "help", subclass_of=bad[1])
