"""Preflight checks against pretended machines, and the verb on this one."""

import json

import pytest
from kanawa.cli import preflight
from kanawa.cli.main import main


def installed(**versions):
    return {name.replace("_", "-"): version for name, version in versions.items()}.get


@pytest.mark.parametrize(
    ("accelerators", "plugins", "described", "level"),
    [(0, (), (), "ok"), (2, (), (), "error"), (2, ("loom",), (), "ok"), (2, (), ("loom",), "ok")],
)
def test_accelerators_without_a_backend_are_an_error(accelerators, plugins, described, level):
    found = preflight.check_platforms({}, accelerators, plugins, described)
    assert found.level == level and found.message.startswith("JAX will try: ")
    assert ("2 accelerators are on the PCI bus" in found.message) == (level == "error")
    assert "JAX will try: cpu" in preflight.check_platforms({"JAX_PLATFORMS": "cpu"}, 0, plugins, described).message


def test_accelerators_are_counted_on_the_pci_bus(tmp_path):
    for number, kind in enumerate(("0x030200", "0x120000", "0x030000", "0x020000")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "class").write_text(f"{kind}\n")
    assert preflight.pci_accelerators(tmp_path) == 2
    assert preflight.pci_accelerators(tmp_path / "gone") == 0


@pytest.mark.parametrize(
    ("jax", "jaxlib", "level"),
    [
        ("0.10.2", "0.10.2", "ok"),
        ("0.10.2", "0.10.1", "ok"),
        ("0.10.1", "0.10.2", "error"),
        ("0.11.0", "0.10.2", "error"),
        ("0.9.0", "0.9.0", "error"),
        ("0.12.0.1", "0.12.0", "ok"),
        ("0.12.0.1", "0.12.0.1", "ok"),
        ("0.13.0", "0.13.0", "error"),
        (None, "0.10.2", "error"),
    ],
)
def test_jax_and_jaxlib_must_fit(jax, jaxlib, level):
    assert preflight.check_jax(installed(jax=jax, jaxlib=jaxlib)).level == level


@pytest.mark.parametrize(
    ("flags", "level", "message"),
    [
        ("", "ok", "not set"),
        ("--xla_a=1 --xla_b", "ok", "--xla_a=1 --xla_b"),
        ("xla_a=1", "error", "'xla_a=1' is not a flag"),
        ("--xla_a=1 --xla_a=2", "warning", "--xla_a is both '1' and '2'; the last one wins"),
    ],
)
def test_xla_flags(flags, level, message):
    (found,) = preflight.check_xla_flags({"XLA_FLAGS": flags})
    assert (found.level, found.message) == (level, message)


def test_old_python_is_a_warning():
    assert preflight.check_python((3, 14)).level == "warning"
    assert preflight.check_python((3, 11)).level == "ok"


@pytest.fixture
def sound_machine(monkeypatch):
    monkeypatch.setattr(preflight, "findings", lambda: [preflight.check_python((3, 12))])
    monkeypatch.setenv("KANAWA_SKIP_PLUGINS", "kanawa-runtime")


def test_doctor_fails_for_a_broken_plugin_and_for_an_error_it_reports(sound_machine, fake_distribution, capsys):
    fake_distribution("fake-ok", {"kanawa.plugins": ["fine = fake_ok"]}, {"fake_ok": ""})
    assert main(["doctor"]) == 0
    source = """
    from kanawa.plugins import Finding, hookimpl
    @hookimpl
    def kanawa_doctor():
        return [Finding("error", "driver", "too old", "update it")]
    """
    fake_distribution("fake-doc", {"kanawa.plugins": ["doc = fake_doc"]}, {"fake_doc": source})
    capsys.readouterr()
    from kanawa.plugins import host

    host().refresh()
    assert main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    finding = {"level": "error", "subject": "driver", "message": "too old", "fix": "update it", "meaning": ""}
    assert finding in found
    assert main(["doctor"]) == 1
    assert "error    driver" in capsys.readouterr().out


def test_doctor_reports_a_plugin_whose_own_check_raises(sound_machine, fake_distribution, capsys):
    source = """
    from kanawa.plugins import hookimpl
    @hookimpl
    def kanawa_doctor():
        raise OSError("no such file")
    """
    fake_distribution("fake-doc", {"kanawa.plugins": ["doc = fake_doc"]}, {"fake_doc": source})
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "fake-doc 1.0 is broken: kanawa_doctor: OSError: no such file" in out
