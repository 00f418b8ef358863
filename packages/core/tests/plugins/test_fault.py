"""The plugin that an error came through: by its frames, through causes, and never one of Kanawa's own packages."""

import pytest
from kanawa.plugins.discovery import own_packages
from kanawa.plugins.fault import how_to_skip, plugin_behind

SOURCE = """
def fail():
    raise ValueError("no")

def calls(function):
    return function()
"""


@pytest.fixture
def stranger(fake_distribution):
    points = {"kanawa.layers": ["part = fake_part:fail"]}
    fake_distribution("fake-part", points, {"fake_part": SOURCE}, version="2.1")
    import fake_part

    return fake_part


def raised(function, *arguments):
    with pytest.raises(Exception) as info:  # noqa: PT011
        function(*arguments)
    return info.value


def test_its_frames_name_it(stranger):
    state = plugin_behind(raised(stranger.fail))
    assert how_to_skip(state) == "this comes from the plugin fake-part 2.1; KANAWA_SKIP_PLUGINS=fake-part leaves it out"


def test_an_error_of_another_that_it_called_came_through_it_too(stranger):
    assert plugin_behind(raised(stranger.calls, lambda: 1 / 0)).distribution == "fake-part"


def test_it_is_found_behind_an_error_that_was_made_of_its_own(stranger):
    def wraps():
        try:
            stranger.fail()
        except ValueError as error:
            raise RuntimeError from error

    assert plugin_behind(raised(wraps)).distribution == "fake-part"


def test_other_code_is_no_plugins(stranger):
    assert plugin_behind(raised(lambda: 1 / 0)) is None


def test_own_packages_are_those_that_cores_extras_bring():
    assert {"kanawa", "kanawa-layers", "kanawa-runtime", "kanawa-parallel", "kanawa-kernel-tools"} <= own_packages()
    assert "kanawa-example-layer" not in own_packages()
