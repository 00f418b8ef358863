"""A saved config whose code is not there: the package is named with its version, and nothing is imported in secret."""

import sys

import pytest
from kanawa.composition.saved import MissingPluginError, read_saved
from kanawa.config import ConfigLoadError, to_json
from kanawa.plugins import host

SPICE = """
from kanawa.config import Config

class Chili(Config):
    heat: int = 3
"""
SAVED = {"$type": "fake_spice:Chili", "heat": 5}
GROUPS = {"kanawa.layers": ["chili = fake_spice:Chili"], "kanawa.data": ["pods = fake_spice:Pods"]}


def test_what_is_installed_is_read(fake_distribution):
    fake_distribution("fake-spice", GROUPS, {"fake_spice": SPICE})
    cfg = read_saved(SAVED, {"fake-spice": "0.9"})
    assert cfg.heat == 5
    assert to_json(cfg)["heat"] == 5


@pytest.mark.parametrize(
    ("recorded", "told"),
    [
        ({"fake-spice": "1.2"}, "fake-spice 1.2 was recorded with it and is not installed: pip install fake-spice==1"),
        ({"hot-stuff": "3.1"}, "fake_spice may be of hot-stuff, recorded with it and not installed: pip install hot"),
        ({}, "fake_spice belongs to no recorded plugin"),
    ],
)
def test_a_package_that_is_missing_is_named(fake_distribution, recorded, told):
    with pytest.raises(MissingPluginError) as error:
        read_saved({"$type": "fake_spice:Chili", "also": {"$callable": "fake_spice:smoke"}}, recorded)
    assert told in str(error.value)
    assert "fake_spice:Chili at the root, fake_spice:smoke at also" in str(error.value)


def test_another_version_is_blamed_before_the_file(fake_distribution):
    fake_distribution("fake-spice", GROUPS, {"fake_spice": SPICE})
    with pytest.raises(MissingPluginError, match="fake-spice was 2.0 then and is 1.0 now: pip install fake-spice==2.0"):
        read_saved({"$type": "fake_spice:Cumin"}, {"fake-spice": "2.0"})
    with pytest.raises(MissingPluginError, match="no field 'smell'(.|\n)*fake-spice was 2.0, is 1.0 now"):
        read_saved({**SAVED, "smell": 1}, {"fake-spice": "2.0"})
    with pytest.raises(ConfigLoadError, match="no field 'smell'"):
        read_saved({**SAVED, "smell": 1}, {"fake-spice": "1.0"})


@pytest.mark.parametrize(
    ("skip", "path", "imported"),
    [
        ("fake-spice", "fake_spice:Chili", False),
        ("fake-spice:chili", "fake_spice:Chili", False),
        ("fake-spice:chili", "fake_spice:Chili.Config", False),
        ("fake-spice:pods", "fake_spice:Chili", True),
    ],
)
def test_a_skipped_plugin_is_not_imported_by_a_config_either(fake_distribution, monkeypatch, skip, path, imported):
    fake_distribution("fake-spice", GROUPS, {"fake_spice": SPICE})
    monkeypatch.setenv("KANAWA_SKIP_PLUGINS", skip)
    host().refresh()
    if imported:
        assert read_saved({"$type": path}).heat == 3
        return
    with pytest.raises(MissingPluginError, match=f"fake-spice 1.0 is skipped: KANAWA_SKIP_PLUGINS names {skip}"):
        read_saved({"$type": path})
    assert "fake_spice" not in sys.modules


def test_an_incompatible_plugin_is_not_imported_by_a_config_either(fake_distribution):
    fake_distribution("fake-spice", GROUPS, {"fake_spice": "raise SystemExit"}, requires=["kanawa>=99"])
    with pytest.raises(MissingPluginError, match="fake-spice 1.0 is incompatible: needs kanawa>=99"):
        read_saved(SAVED)
