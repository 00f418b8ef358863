"""Broken plugins of fifteen and more kinds: nothing that doesn't need them stops, and one line says what is wrong."""

from typing import NamedTuple

import pytest
from laid_out import lay_out

NAME = "broken-one"
SKIP = f"KANAWA_SKIP_PLUGINS={NAME}"
SMALL = ("--steps", "2", "--run", "run")
TRAIN = ("train", "tiny-lm", *SMALL)
HOOKS = "from kanawa.plugins import hookimpl\n\n@hookimpl\n"


class Broken(NamedTuple):
    """A plugin's entry points and modules, and what meets it.

    `meets` is a command line that is concerned and `survives` whether it does its work all the same; `says` stands in
    the one line about it. Every other command line works.
    """

    entry_points: dict[str, dict[str, str]]
    modules: dict[str, str]
    meets: tuple[str, ...]
    survives: bool
    says: str


def of_hooks(text: str, meets: tuple[str, ...], says: str, *, survives: bool = True) -> Broken:
    """Returns a plugin module."""
    return Broken({"plugins": {"mine": "{me}.plugin"}}, {"plugin": text}, meets, survives, says)


def of_component(
    kind: str, name: str, text: str, meets: tuple[str, ...], says: str, *, survives: bool = False
) -> Broken:
    """Returns a component `Mine`."""
    return Broken({kind: {name: "{me}.part:Mine"}}, {"part": text}, meets, survives, says)


SHOW = ("show", "tiny-lm")
MODIFIED = ("show", "tiny-lm", "--modify", "mine")
DEVICE = """
    from kanawa.plugins import DeviceSpec, hookimpl

    @hookimpl
    def kanawa_device_specs():
        figures = dict(memory_bytes=1, memory_bandwidth=1, link_bandwidth=1, network_bandwidth=1, chips_per_host=1)
        return [DeviceSpec(name="h100", platform="gpu", source="a guess", **figures)]
"""
TINY = ("evaluation.final_batches=1", "batch_size=2", "data.sequence_length=32", "data.tokenizer.vocab_size=300")
TRACE = ("train", "llama-tiny", *SMALL, *(text for each in TINY for text in ("--set", each)))
KERNEL = """
    from kanawa.kernels import Kernel, Verdict

    class Mine(Kernel):
        name = "rms_norm.cpu.mine"
        platforms = ("cpu",)
        priority = 1000
        autodiff = True

        def supports(self, problem, device):
            {supports}

        def forward(self, problem, operands):
            {forward}
"""
SERVICE = """
    from kanawa.contracts import Service

    class Mine(Service):
        class Config(Service.Config):
            pass

        def start(self, run):
            self.fails("start")

        def event(self, run, event):
            self.fails("event")

        def stop(self, run):
            self.fails("stop")

        def fails(self, method):
            if method == "{method}":
                raise RuntimeError("no licence found")
"""
MODIFIER = """
    import kanawa as kn

    class Mine(kn.Modifier):
        class Config(kn.Modifier.Config):
            pass

        def __call__(self, cfg):
            {body}
"""
SOURCE = """
    from kanawa_runtime.data.random_tokens import RandomTokens

    class Mine(RandomTokens):
        class Config(RandomTokens.Config):
            pass

        def row(self, index):
            raise RuntimeError("no licence found")
"""
LAYER = """
    import kanawa as kn
    from kanawa.contracts import FeedForward

    class Layer(FeedForward):
        class Config(FeedForward.Config):
            pass

        def forward(self, x, sequences):
            raise RuntimeError("no licence found")

    class Mine(kn.Modifier):
        class Config(kn.Modifier.Config):
            pass

        def __call__(self, cfg):
            kn.replace(cfg, target=FeedForward, new=Layer.Config(hidden_dim=16))
            return cfg
"""
VERB = """
    from kanawa.plugins import Command, hookimpl

    def fails(*arguments):
        raise RuntimeError("no licence found")

    @hookimpl
    def kanawa_commands():
        return [Command("mine", "a verb", {configure}, fails)]
"""
LICENCE = "RuntimeError: no licence found"
BROKEN = {
    "raises when imported": of_hooks("raise RuntimeError('no licence found')", SHOW, LICENCE),
    "ends the program when imported": of_hooks("raise SystemExit(0)", SHOW, "SystemExit: 0"),
    "isn't Python": of_hooks("def hook(:", SHOW, "SyntaxError"),
    "needs a library that isn't here": of_hooks("import no_such_library", SHOW, "No module named 'no_such_library'"),
    "has a hook that there isn't": of_hooks(
        f"{HOOKS}def kanawa_device_spec(): ...", SHOW, "did you mean 'kanawa_device_specs'"
    ),
    "has a hook with other arguments": of_hooks(f"{HOOKS}def kanawa_commands(parser): ...", SHOW, "parser"),
    "returns text for a list": of_hooks(f"{HOOKS}def kanawa_commands(): return 'mine'", ("--help",), "list of Command"),
    "returns text for sentences": of_hooks(
        f"{HOOKS}def kanawa_config_checks(config): return 'too wide'", SHOW, "tiny-lm: too wide", survives=False
    ),
    "raises in a hook": of_hooks(
        f"{HOOKS}def kanawa_mesh_rules(): 1 / 0", (*SHOW, "--on", "cpu-1"), "ZeroDivisionError"
    ),
    "describes a device of ours": of_hooks(DEVICE, TRAIN, "h100", survives=True),
    "has a verb whose arguments fail": of_hooks(VERB.format(configure="fails"), ("--help",), LICENCE),
    "has a verb that fails": of_hooks(VERB.format(configure="print"), ("mine",), LICENCE, survives=False),
    "has a component that isn't there": Broken(
        {"modifiers": {"mine": "{me}.part:Mine"}}, {"part": ""}, MODIFIED, survives=False, says="no attribute 'Mine'"
    ),
    "has a modifier that returns nothing": of_component(
        "modifiers", "mine", MODIFIER.format(body="pass"), MODIFIED, "returned NoneType, expected the rewritten config"
    ),
    "has a modifier that raises": of_component(
        "modifiers", "mine", MODIFIER.format(body="raise RuntimeError('no licence found')"), MODIFIED, LICENCE
    ),
    "has a layer that raises": of_component("modifiers", "mine", LAYER, (*TRAIN, "--modify", "mine"), LICENCE),
    "has a kernel that raises when asked": of_component(
        "kernels",
        "rms_norm.cpu.mine",
        KERNEL.format(supports="raise RuntimeError('no licence found')", forward="..."),
        TRACE,
        LICENCE,
    ),
    "has a kernel that raises when traced": of_component(
        "kernels",
        "rms_norm.cpu.mine",
        KERNEL.format(supports="return Verdict(ok=True)", forward="raise RuntimeError('no licence found')"),
        TRACE,
        LICENCE,
    ),
    "has a kernel of another dtype": of_component(
        "kernels",
        "rms_norm.cpu.mine",
        KERNEL.format(supports="return Verdict(ok=True)", forward="return operands['x'].astype('int8'), None"),
        TRACE,
        "rms_norm.cpu.mine",
    ),
    "has a kernel that is no kernel": of_component(
        "kernels", "rms_norm.cpu.mine", "class Mine: ...", TRACE, "expected a subclass of Kernel", survives=True
    ),
    "has a template that can't be imported": of_component(
        "templates", "mine", "raise RuntimeError('no licence found')", ("show", "llama-tiny"), LICENCE, survives=True
    ),
    "has a modifier that is none": of_component(
        "modifiers", "mine", "class Mine: ...", MODIFIED, "expected a subclass of Modifier"
    ),
    "has an experiment that is none": of_component(
        "experiments", "mine", "Mine = 7", ("show", "mine"), "expected a Callable"
    ),
    "claims a verb of ours": of_hooks(
        VERB.format(configure="print").replace('"mine"', '"train"'), TRAIN, "verb 'train' is offered by"
    ),
    "claims a cache of ours": of_component(
        "caches", "paged", MODIFIER.format(body="pass"), TRAIN, "paged", survives=True
    ),
    "has a source that raises": of_component(
        "data", "mine", SOURCE, (*TRAIN, "--data", "mine", "--set", "model.vocab_size=2048"), LICENCE
    ),
    "has a service that fails to start": of_component(
        "services",
        "mine",
        SERVICE.format(method="start"),
        (*TRAIN, "--modify", "service:name=mine"),
        LICENCE,
        survives=True,
    ),
    "has a service that fails at events": of_component(
        "services",
        "mine",
        SERVICE.format(method="event"),
        (*TRAIN, "--modify", "service:name=mine"),
        LICENCE,
        survives=True,
    ),
}


#: One of each way to be broken, and to meet it; the others wait for the night.
DAILY = {
    *("raises when imported", "has a hook that there isn't", "returns text for sentences", "raises in a hook"),
    *("has a verb that fails", "has a component that isn't there", "has a modifier that raises"),
    *("has a kernel that raises when traced", "has an experiment that is none", "claims a verb of ours"),
    *("has a service that fails at events",),
}


def test_what_is_met_each_day_is_among_them():
    assert not DAILY - set(BROKEN)


@pytest.mark.parametrize("kind", [pytest.param(k, marks=() if k in DAILY else pytest.mark.nightly) for k in BROKEN])
def test_it_is_survived_with_one_clear_line(installation, kind):
    broken = BROKEN[kind]
    lay_out(installation.plugins, NAME, broken.entry_points, broken.modules)
    assert installation.run("list", "experiments").returncode == 0
    done = installation.run(*broken.meets)
    assert (done.returncode == 0) == broken.survives, done.stderr
    about = [line for line in done.stderr.splitlines() if broken.says in line]
    assert len(about) == 1, done.stderr
    assert NAME in done.stderr
    assert SKIP in done.stderr, done.stderr
    assert "this is a bug" not in done.stderr
    if not broken.survives:
        assert "Traceback" not in done.stderr
