"""What a backend's runtime reads in each process of a gang is set before JAX starts."""

import os

import pytest
from kanawa.plugins import PluginHost, hookimpl, set_host
from kanawa_runtime.commands.gang import prepare_gang


class Fabric:
    @hookimpl
    def kanawa_process_environment(self, device, root, processes, index):
        assert device.name == "cpu"
        return {"FABRIC_ROOT": root, "FABRIC_RANK": f"{index}/{processes}"}


class Elsewhere:
    @hookimpl
    def kanawa_process_environment(self, device):
        return None


@pytest.fixture
def fabric(monkeypatch):
    for name in ("FABRIC_ROOT", "FABRIC_RANK"):
        # Set and removed, so that what the code under test sets is taken back as well.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    host = PluginHost()
    host.register(Fabric(), "fabric")
    host.register(Elsewhere(), "elsewhere")
    before = set_host(host)
    yield
    set_host(before)


def test_backends_set_what_the_environment_hasn_t(fabric, monkeypatch):
    monkeypatch.setenv("FABRIC_ROOT", "mine")
    prepare_gang("cpu-4", "[fd00::1]:8476", 4, 3)
    assert (os.environ["FABRIC_ROOT"], os.environ["FABRIC_RANK"]) == ("mine", "3/4")


def test_an_address_in_brackets_is_told_bare(fabric):
    prepare_gang("cpu-4", "[fd00::1]:8476", 4, 0)
    assert os.environ["FABRIC_ROOT"] == "fd00::1"


@pytest.mark.parametrize("given", [(None, "a:1", 2, 0), ("cpu-4", None, None, None)])
def test_nothing_is_set_alone_or_without_a_target(fabric, given):
    prepare_gang(*given)
    assert "FABRIC_RANK" not in os.environ
