"""Plugins that raise, need another core, or claim a taken name: the host says what and why."""

import pytest


def plugin_states(installation):
    return {state["distribution"]: state for state in installation.json("plugins")}


@pytest.fixture
def raising(wheel_of):
    return wheel_of(
        "raises-on-import",
        entry_points={
            "kanawa.plugins": {"raiser": "raises_on_import.plugin"},
            "kanawa.modifiers": {"from-the-raiser": "raises_on_import.modifier:Modify"},
        },
        modules={
            "plugin": "raise RuntimeError('no licence found')",
            "modifier": "class Modify: ...",
        },
    )


@pytest.fixture
def outdated(wheel_of):
    return wheel_of(
        "needs-another-core",
        entry_points={
            "kanawa.plugins": {"outdated": "needs_another_core.plugin"},
            "kanawa.layers": {"old-layer": "needs_another_core.plugin:Layer"},
        },
        modules={"plugin": "raise SystemExit('must never be imported')"},
        requires=("kanawa>=7.0,<8",),
    )


def test_one_that_raises_on_import_is_reported_and_the_rest_works(installation, raising):
    installation.install(raising)
    states = plugin_states(installation)
    assert states["raises-on-import"]["state"] == "broken"
    assert states["raises-on-import"]["reason"] == "RuntimeError: no licence found"
    assert "plugin.py" in states["raises-on-import"]["traceback"]
    assert states["kanawa-layers"]["state"] == "loaded"
    assert installation.run("show", "quickstart").returncode == 0


def test_it_is_an_error_only_when_its_component_is_named(installation, raising):
    installation.install(raising)
    done = installation.run("show", "quickstart", "--modify", "from-the-raiser")
    assert done.returncode != 0
    assert "raises-on-import 1.2.3" in done.stderr
    assert "no licence found" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_one_is_one_warning_line(installation, raising):
    installation.install(raising)
    done = installation.run("show", "quickstart")
    lines = [line for line in done.stderr.splitlines() if "raises-on-import" in line]
    assert len(lines) == 1, done.stderr


def test_one_that_needs_another_core_is_never_imported(installation, outdated):
    installation.install(outdated)
    state = plugin_states(installation)["needs-another-core"]
    assert state["state"] == "incompatible"
    assert "kanawa<8,>=7.0, found 0.1.0" in state["reason"]
    layers = {c["name"]: c for c in installation.json("list", "layers")}
    assert layers["old-layer"]["state"] == "incompatible"
    assert installation.run("show", "quickstart").returncode == 0


def test_two_that_claim_one_name_are_both_in_conflict(installation, wheel_of):
    entry = {"kanawa.modifiers": {"twice": "{}.modifier:Twice"}}
    text = """
        import kanawa as kn

        class Twice(kn.Modifier):
            class Config(kn.Modifier.Config):
                pass

            def __call__(self, cfg):
                return cfg
    """
    for name in ("first-claimant", "second-claimant"):
        value = f"{name.replace('-', '_')}.modifier:Twice"
        entry = {"kanawa.modifiers": {"twice": value}}
        installation.install(wheel_of(name, entry_points=entry, modules={"modifier": text}))
    claims = [c for c in installation.json("list", "modifiers") if c["name"] == "twice"]
    assert [claim["state"] for claim in claims] == ["conflict", "conflict"]
    assert "second-claimant:twice" in claims[0]["reason"]

    done = installation.run("show", "quickstart", "--modify", "twice")
    assert done.returncode != 0
    assert "first-claimant:twice" in done.stderr
    assert "second-claimant:twice" in done.stderr

    chosen = installation.run("show", "quickstart", "--modify", "first-claimant:twice")
    assert chosen.returncode == 0, chosen.stderr


def test_order_of_installation_changes_nothing(installation, raising, outdated):
    installation.install(raising)
    installation.install(outdated)
    one = installation.json("plugins")
    second = installation.plugins.with_name("other-order")
    installation.plugins = second
    installation.install(outdated)
    installation.install(raising)
    other = installation.json("plugins")
    assert [state["name"] for state in one] == [state["name"] for state in other]
