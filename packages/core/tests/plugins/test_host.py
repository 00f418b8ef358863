"""The host against real metadata: order, states, and bad plugins that harm nobody else."""

import logging

import pytest
from kanawa.errors import Interruption, PluginError
from kanawa.plugins import MeshRule, PluginHost, hookimpl, host
from kanawa.plugins.discovery import unmet_requirements
from packaging.specifiers import SpecifierSet

GROUP = "kanawa.plugins"

CHECKS = """
from kanawa.plugins import hookimpl
PRIORITY = {priority}
@hookimpl
def kanawa_config_checks(config):
    return ["{name}"]
"""


def state_of(name):
    (found,) = [state for state in host().plugins() if state.name == name]
    return found


def answers():
    ours = host().collect("kanawa_config_checks", config=None, target=None, model=None)
    return [answer for key, found in ours if key.startswith("fake-") for answer in found]


def test_calls_follow_priority_then_distribution_whatever_the_install_order(fake_distribution):
    for dist, priority in (("fake-c", 0), ("fake-a", 5), ("fake-d", -1), ("fake-b", 0)):
        module = dist.replace("-", "_")
        source = CHECKS.format(priority=priority, name=dist)
        fake_distribution(dist, {GROUP: [f"{dist} = {module}"]}, {module: source})
    assert answers() == ["fake-d", "fake-b", "fake-c", "fake-a"]


@pytest.mark.parametrize(
    ("requires", "reason"),
    [
        ("pluggy>=99", "needs pluggy>=99, found"),
        ("nowhere-to-be-found>=1", "needs nowhere-to-be-found>=1, which is not installed"),
        ("pluggy<", "can't be read"),
    ],
)
def test_unmet_requirement_is_found_before_import(fake_distribution, requires, reason):
    fake_distribution(
        "fake-old",
        {GROUP: ["old = fake_old"], "kanawa.layers": ["thing = fake_old:Thing"]},
        {"fake_old": "raise SystemExit('imported')"},
        requires=[requires],
    )
    state = state_of("old")
    assert state.state == "incompatible"
    assert reason in state.reason
    with pytest.raises(PluginError, match=r"'thing' of fake-old 1.0 is incompatible") as error:
        host().load("layers", "thing")
    assert reason in str(error.value)


@pytest.mark.parametrize("installed", ["0.10", "0.10.2", "0.12.0", "0.12.0.dev3", "1!0.1", "0.9.99", "3"])
@pytest.mark.parametrize(
    "clauses",
    ["", ">=0.10", "<0.12,>=0.10", ">=0.10.0, <0.12.0.1", ">0.10,<=0.12", "~=0.10", "==0.10", "!=0.12", ">=0.10.dev1"],
)
def test_requirements_hold_where_packaging_says_so(installed, clauses):
    met = SpecifierSet(clauses).contains(installed, prereleases=True)
    problems = unmet_requirements([f"some-thing{clauses}"], {"some-thing": installed}.get)
    assert problems == ([] if met else [f"needs some-thing{SpecifierSet(clauses)}, found {installed}"])


@pytest.mark.parametrize("text", ["some-thing>=0.1 <2", "some-thing>=0.1,,<2", "some-thing>="])
def test_a_requirement_that_is_none_is_told(text):
    (problem,) = unmet_requirements([text], {"some-thing": "1.0"}.get)
    assert text in problem


def test_a_plugins_metadata_is_read_as_its_author_wrote_it(fake_distribution):
    # The text after the header is the README: what it says of versions is no field.
    folder = fake_distribution("fake-read", {GROUP: ["read = fake_read"]}, {"fake_read": ""}, version="1.5")
    metadata = folder / "fake_read-1.5.dist-info" / "METADATA"
    metadata.write_text(f"{metadata.read_text().rstrip()}\n\nVersion: 9\nRequires-Dist: nowhere\n")
    state = state_of("read")
    assert (state.state, state.version) == ("loaded", "1.5")


def test_requirement_of_an_extra_or_another_platform_does_not_count(fake_distribution):
    requires = [
        'nowhere>=1; extra == "s3"',
        'nowhere; sys_platform == "amiga"',
        "fake-dep>=1.0.dev0",
    ]
    fake_distribution("fake-dep", version="2.0.dev1")
    fake_distribution("fake-ok", {GROUP: ["ok = fake_ok"]}, {"fake_ok": ""}, requires=requires)
    assert state_of("ok").state == "loaded"


@pytest.mark.parametrize("source", ["1/0", "import nowhere_at_all", "raise SystemExit", "raise GeneratorExit", "x ="])
def test_failing_import_is_one_warning_and_breaks_only_its_own(fake_distribution, caplog, source):
    fake_distribution(
        "fake-bad",
        {GROUP: ["bad = fake_bad"], "kanawa.layers": ["lost = json:JSONDecoder"]},
        {"fake_bad": source},
    )
    good = CHECKS.format(priority=0, name="good")
    fake_distribution("fake-good", {GROUP: ["good = fake_good"]}, {"fake_good": good})
    with caplog.at_level(logging.WARNING, "kanawa.plugins"):
        assert answers() == ["good"]
    bad = state_of("bad")
    assert bad.state == "broken"
    assert "Traceback" in bad.traceback
    assert "\n" not in bad.reason
    assert [r.message for r in caplog.records if "fake-bad" in r.message] == [
        f"plugin fake-bad:bad 1.0 is broken: {bad.reason}; KANAWA_SKIP_PLUGINS=fake-bad:bad leaves it out"
    ]
    with pytest.raises(PluginError, match="its plugin bad is broken"):
        host().load("layers", "lost")


def test_unknown_hook_is_not_passed_over_in_silence(fake_distribution):
    source = CHECKS.format(priority=0, name="x").replace("config_checks", "confg_checks")
    fake_distribution("fake-typo", {GROUP: ["typo = fake_typo"]}, {"fake_typo": source})
    assert state_of("typo").state == "broken"
    assert "did you mean 'kanawa_config_checks'" in state_of("typo").reason


def test_wrong_hook_argument_breaks_the_plugin(fake_distribution):
    source = CHECKS.format(priority=0, name="x").replace("(config)", "(configuration)")
    fake_distribution("fake-args", {GROUP: ["args = fake_args"]}, {"fake_args": source})
    assert state_of("args").state == "broken"
    assert "configuration" in state_of("args").traceback


def test_hook_wrappers_are_refused(fake_distribution):
    source = """
    from kanawa.plugins import hookimpl
    @hookimpl(wrapper=True)
    def kanawa_doctor():
        return (yield)
    """
    fake_distribution("fake-wrap", {GROUP: ["wrap = fake_wrap"]}, {"fake_wrap": source})
    assert "wrappers are not supported" in state_of("wrap").reason


def test_plugins_of_one_name_work_side_by_side_and_one_can_be_skipped(fake_distribution, monkeypatch):
    for dist in ("fake-a", "fake-b"):
        module = dist.replace("-", "_")
        source = CHECKS.format(priority=0, name=dist)
        fake_distribution(dist, {GROUP: [f"same = {module}"]}, {module: source})
    assert answers() == ["fake-a", "fake-b"]
    monkeypatch.setenv("KANAWA_SKIP_PLUGINS", "Fake_A")
    host().refresh()
    states = {s.distribution: s.state for s in host().plugins() if s.name == "same"}
    assert states == {"fake-a": "skipped", "fake-b": "loaded"}
    assert answers() == ["fake-b"]


def test_contributor_that_raises_or_lies_becomes_broken(fake_distribution):
    raising = """
    from kanawa.plugins import hookimpl
    @hookimpl
    def kanawa_mesh_rules():
        raise KeyError("boom")
    @hookimpl
    def kanawa_config_checks(config):
        return ["raising"]
    """
    lying = raising.replace('raise KeyError("boom")', 'return ["not a rule"]')
    fake_distribution("fake-1", {GROUP: ["one = fake_one"]}, {"fake_one": raising})
    fake_distribution("fake-2", {GROUP: ["two = fake_two"]}, {"fake_two": lying})
    assert answers() == ["raising", "raising"]
    rules = dict(host().collect("kanawa_mesh_rules"))
    assert not [key for key in rules if key.startswith("fake-")]
    assert state_of("one").reason == "kanawa_mesh_rules: KeyError: 'boom'"
    assert "must return a list of MeshRule" in state_of("two").reason
    assert answers() == []


@pytest.mark.parametrize("raised", ["SystemExit(0)", "GeneratorExit()", "type('Own', (BaseException,), {})()"])
@pytest.mark.parametrize("hook", ["kanawa_config_checks(config)", "kanawa_components()", "kanawa_hookspecs()"])
def test_a_hook_that_ends_the_program_is_a_broken_plugin(fake_distribution, caplog, hook, raised):
    source = f"""
    from kanawa.plugins import hookimpl
    @hookimpl
    def {hook}:
        raise {raised}
    """
    fake_distribution("fake-exit", {GROUP: ["exit = fake_exit"]}, {"fake_exit": source})
    fake_distribution("fake-good", {GROUP: ["good = fake_good"]}, {"fake_good": CHECKS.format(priority=1, name="good")})
    with caplog.at_level(logging.WARNING, "kanawa.plugins"):
        assert answers() == ["good"]
    state = state_of("exit")
    assert (state.state, "Traceback" in state.traceback) == ("broken", True)
    assert [r.message for r in caplog.records if "fake-exit" in r.message] == [
        f"plugin fake-exit:exit 1.0 is broken: {state.reason}; KANAWA_SKIP_PLUGINS=fake-exit:exit leaves it out"
    ]


def test_a_component_whose_import_ends_the_program_is_broken(fake_distribution):
    entry = {"kanawa.layers": ["gone = fake_gone:Thing"]}
    fake_distribution("fake-gone", entry, {"fake_gone": "import sys; sys.exit(0)"})
    with pytest.raises(PluginError, match="SystemExit: 0"):
        host().load("layers", "gone")


def test_an_observer_that_ends_the_program_is_logged(fake_distribution, caplog):
    source = """
    from kanawa.plugins import hookimpl
    @hookimpl
    def kanawa_config_checks(config):
        raise SystemExit(0)
    """
    fake_distribution("fake-exit", {GROUP: ["exit = fake_exit"]}, {"fake_exit": source})
    for _ in range(4):
        host().notify("kanawa_config_checks", config=None, target=None, model=None)
    assert "no longer observes: failed 3 times" in state_of("exit").reason


@pytest.mark.parametrize("raised", [KeyboardInterrupt, Interruption])
def test_somebody_who_interrupts_gets_through_every_plugin(fake_distribution, raised):
    source = f"""
    from kanawa.errors import Interruption
    from kanawa.plugins import hookimpl
    @hookimpl
    def kanawa_config_checks(config):
        raise {raised.__name__}
    """
    fake_distribution("fake-stop", {GROUP: ["stop = fake_stop"]}, {"fake_stop": source})
    with pytest.raises(raised):
        answers()
    assert state_of("stop").state == "loaded"


def test_deliberate_error_about_an_argument_reaches_the_caller(fake_distribution):
    source = """
    from kanawa.errors import TargetError
    from kanawa.plugins import hookimpl
    @hookimpl
    def kanawa_topology(target):
        raise TargetError(f"install the compiler for {target}")
    """
    fake_distribution("fake-t", {GROUP: ["t = fake_t"]}, {"fake_t": source})
    with pytest.raises(Exception, match="install the compiler for moon"):
        host().collect("kanawa_topology", target="moon")
    assert state_of("t").state == "loaded"


def test_plugin_specs_of_its_own_can_be_implemented_by_another(fake_distribution):
    specs = """
    from kanawa.plugins import hookspec
    @hookspec
    def kanawa_fake_colour(shade): "Returns a colour."
    """
    owner = """
    import fake_specs
    from kanawa.plugins import hookimpl
    @hookimpl
    def kanawa_hookspecs():
        return fake_specs
    """
    user = """
    from kanawa.plugins import hookimpl
    @hookimpl
    def kanawa_fake_colour(shade):
        return f"{shade} indigo"
    """
    misuser = user.replace("shade", "hue")
    fake_distribution("fake-z", {GROUP: ["z = fake_z"]}, {"fake_z": owner, "fake_specs": specs})
    fake_distribution("fake-u", {GROUP: ["u = fake_u"]}, {"fake_u": user})
    fake_distribution("fake-m", {GROUP: ["m = fake_m"]}, {"fake_m": misuser})
    assert host().collect("kanawa_fake_colour", shade="deep") == [("fake-u:u", "deep indigo")]
    assert state_of("m").state == "broken"
    assert state_of("z").state == "loaded"


class Observer:
    def __init__(self):
        self.calls = 0

    @hookimpl
    def kanawa_run_ended(self, event):
        self.calls += 1
        if event == "bad":
            raise ValueError(event)


def test_observer_is_logged_once_and_left_out_after_three_failures(fake_distribution, caplog):
    bad, good = Observer(), Observer()
    host().register(bad, "bad")
    host().register(good, "good")
    good.kanawa_run_ended = None
    for _ in range(5):
        host().notify("kanawa_run_ended", run=None, event="bad")
    host().notify("kanawa_run_ended", run=None, event="fine")
    assert (bad.calls, good.calls) == (3, 3)
    lines = [r.message for r in caplog.records if "local:bad" in r.message]
    assert len(lines) == 2
    assert "failed in kanawa_run_ended" in lines[0]
    assert "no longer observes: failed 3 times" in lines[1]
    assert "no longer observes" in state_of("bad").reason


def test_observers_all_hear_of_what_one_of_them_chokes_on(fake_distribution):
    class Choking:
        @hookimpl
        def kanawa_run_ended(self, event):
            raise ValueError

    quiet = Observer()
    host().register(Choking(), "a-choking")
    host().register(quiet, "b-quiet")
    host().notify("kanawa_run_ended", run=None, event="fine")
    assert quiet.calls == 1


def test_local_plugin_that_does_not_fit_is_refused_and_forgotten(fake_distribution):
    class Wrong:
        @hookimpl
        def kanawa_run_ended(self, happening):
            """Takes an argument that the spec doesn't have."""

    with pytest.raises(PluginError, match="plugin 'wrong' can't be registered: broken"):
        host().register(Wrong(), "wrong")
    assert not [state for state in host().plugins() if state.name == "wrong"]


def test_asking_for_a_hook_that_is_not_there_or_with_wrong_arguments():
    empty = PluginHost(discover=list)
    with pytest.raises(PluginError, match="did you mean 'kanawa_doctor'"):
        empty.collect("kanawa_docter")
    with pytest.raises(PluginError, match=r"kanawa_topology takes \(target\), got \(pod\)"):
        empty.collect("kanawa_topology", pod="v5p-512")


def test_plugin_that_asks_the_host_while_loading_is_broken_not_a_deadlock(fake_distribution):
    source = "from kanawa.plugins import host\nhost().plugins()"
    fake_distribution("fake-eager", {GROUP: ["eager = fake_eager"]}, {"fake_eager": source})
    assert "while it was being loaded" in state_of("eager").reason


def test_shadowed_distribution_counts_once(fake_distribution, tmp_path, monkeypatch):
    fake_distribution("fake-x", {GROUP: ["x = json"]}, version="2.0")
    later = tmp_path / "later"
    fake_distribution("fake-x", {GROUP: ["x = csv"]}, version="1.0", folder=later)
    import sys

    monkeypatch.setattr(sys, "path", [*sys.path, str(later)])
    assert (state_of("x").version, state_of("x").value) == ("2.0", "json")


def test_plugin_set_leaves_out_what_cannot_be_used(fake_distribution):
    fake_distribution("fake-good", {"kanawa.layers": ["a = json:loads"]}, version="3.1")
    fake_distribution("fake-old", {"kanawa.layers": ["b = json:loads"]}, requires=["nowhere"])
    found = host().plugin_set()
    assert found["fake-good"] == "3.1"
    assert "fake-old" not in found
    before = host().plugin_set_digest()
    fake_distribution("fake-other", {"kanawa.layers": ["c = json:loads"]})
    host().refresh()
    assert len(before) == 64 and host().plugin_set_digest() != before


def test_mesh_rule_with_two_free_axes_is_refused():
    with pytest.raises(ValueError, match="only one mesh axis may be -1"):
        MeshRule(name="r", platform="cpu", mesh={"a": -1, "b": -1})
