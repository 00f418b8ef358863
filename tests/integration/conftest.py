"""The installed command, and strangers' plugins: real wheels, built here, beside our own."""

import dataclasses
import gc
import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import textwrap
import venv
from collections.abc import Callable

import eight_devices  # noqa: F401
import jax
import pytest
import tiny_lm
from drills import (
    pytest_terminal_summary,  # noqa: F401 - what a conftest holds, pytest takes
    record_drill,  # noqa: F401
    settle_hypothesis,
)
from nursery import Nursery
from replay.pages import RUN
from replay.replay import Replay
from warm_command import WarmCommand
from xla_options import xla_flags

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "plugins" / "kanawa-example-layer"
SLOW_SECONDS = 900
#: Files that take a minute or so, which come first: a long one at the end would leave a worker without work.
LONG_FILES = (
    *("pages", "gang", "training_service", "fault_drills", "local_gang", "front_door", "rollouts", "watchdog"),
    *("rollout_gang", "serve_options", "fine_tuning", "diffusion", "engine_models", "hugging_face", "disaggregated"),
    *("eight_strangers", "exact_rollouts", "preferences", "pages_your_own", "masked_diffusion", "without_cpu_backend"),
    *("strangers_plugin", "peft_start", "new_plugin", "warm_start", "evaluation_while_training", "fifteen_broken"),
)
settle_hypothesis()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Has LONG_FILES begin, in their order, and leaves all others as they are."""
    places = {f"test_{name}": place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@dataclasses.dataclass
class Installation:
    """A `kanawa` that sees a folder of plugins besides what the session installed."""

    folder: pathlib.Path
    plugins: pathlib.Path
    command: str

    def run(self, *arguments: str) -> subprocess.CompletedProcess:
        """Runs the command line in the folder; the caller looks at the exit code."""
        # Test modules ask XLA for eight devices of their own process; a user's has one.
        path = os.pathsep.join([str(self.plugins), tiny_lm.FOLDER])
        environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags()}
        return subprocess.run(
            [self.command, *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SLOW_SECONDS,
            check=False,
        )

    def json(self, *arguments: str) -> object:
        """Runs a verb that succeeds, with --json; returns what it wrote."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def events(self, run: str) -> list[dict]:
        """Returns the records of a run."""
        lines = (self.folder / run / "events.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def install(self, *wheels: pathlib.Path) -> None:
        """Installs wheels into the plugin folder, without what they require."""
        command = ["uv", "pip", "install", "--quiet", "--no-deps", f"--target={self.plugins}"]
        subprocess.run([*command, *map(str, wheels)], check=True, capture_output=True)


@pytest.fixture(scope="module", autouse=True)
def forgotten_programs():
    """Drops a file's compiled programs: all files' together take 5 GiB, and more mappings than Linux allows a process.

    LLVM ends a process that can't map the memory of one more program.
    """
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="session")
def warm_command(tmp_path_factory):
    """The `kanawa` that starts in a moment."""
    path = {"PYTHONPATH": tiny_lm.FOLDER, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags()}
    with WarmCommand(tmp_path_factory.mktemp("warm"), path) as warm:
        yield warm.command


@pytest.fixture(scope="session")
def nursery():
    """Forks `kanawa` processes that have imported everything, each on one device unless it is told."""
    with Nursery() as started:
        yield started


@pytest.fixture(scope="session")
def fresh_installation(tmp_path_factory, warm_command):
    """Makes installations, each with a fresh folder and no plugins but those of the session."""

    def make() -> Installation:
        folder = tmp_path_factory.mktemp("installation")
        installation = Installation(folder / "work", folder / "plugins", warm_command)
        installation.folder.mkdir()
        installation.plugins.mkdir()
        return installation

    return make


@pytest.fixture
def kanawa(work, warm_command):
    """Runs a command that succeeds in `work`, the test file's folder, on one device; returns what it wrote."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(work), tiny_lm.FOLDER])}
    environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags()}

    def run(*arguments: str) -> str:
        command = [warm_command, *arguments]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=SLOW_SECONDS)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def installation(fresh_installation) -> Installation:
    """One for this test alone."""
    return fresh_installation()


def build(project: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
    """Builds a project's wheel, outside the repository; returns it."""
    command = ["uv", "build", "--quiet", "--wheel", f"--out-dir={out}", str(project)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="session", name="build")
def build_fixture() -> Callable[[pathlib.Path, pathlib.Path], pathlib.Path]:
    """`build(project, out)` builds a project's wheel and returns it."""
    return build


@pytest.fixture(scope="session")
def example_wheel(tmp_path_factory) -> pathlib.Path:
    """The wheel of examples/plugins/kanawa-example-layer."""
    return build(EXAMPLE, tmp_path_factory.mktemp("example"))


@pytest.fixture
def wheel_of(tmp_path):
    """Builds a plugin's wheel from texts: `wheel_of(name, entry_points=, modules=, requires=)`."""

    def build_from(
        name: str,
        *,
        entry_points: dict[str, dict[str, str]],
        modules: dict[str, str],
        requires: tuple[str, ...] = ("kanawa>=0.1",),
    ) -> pathlib.Path:
        project = tmp_path / "projects" / name
        package = name.replace("-", "_")
        source = project / "src" / package
        source.mkdir(parents=True)
        (source / "__init__.py").write_text("")
        for module, text in modules.items():
            (source / f"{module}.py").write_text(textwrap.dedent(text))
        lines = [
            "[build-system]",
            'requires = ["hatchling"]',
            'build-backend = "hatchling.build"',
            "[project]",
            f'name = "{name}"',
            'version = "1.2.3"',
            f"dependencies = {json.dumps(requires)}",
        ]
        for group, entries in entry_points.items():
            lines.append(f'[project.entry-points."{group}"]')
            lines += [f'"{key}" = "{value}"' for key, value in entries.items()]
        lines += ["[tool.hatch.build.targets.wheel]", f'packages = ["src/{package}"]']
        (project / "pyproject.toml").write_text("\n".join(lines) + "\n")
        return build(project, tmp_path / "wheels" / name)

    return build_from


@pytest.fixture
def environment_with_pip(tmp_path, warm_command) -> Callable[..., tuple[pathlib.Path, dict[str, str]]]:
    """Makes an environment that sees what the session installed; returns its Python and its variables.

    What is installed into it is gone with the test. The session's packages are found behind its own. With `quick`, its
    `pip` is uv's, which keeps what it builds with and installs only what is named, and its `kanawa` is forked; without,
    both are what a user has.
    """

    def make(variables: dict[str, str], *, quick: bool) -> tuple[pathlib.Path, dict[str, str]]:
        environment = tmp_path / "environment"
        venv.create(environment, with_pip=not quick)
        (site,) = environment.glob("lib/python*/site-packages")
        (site / "session.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        python = environment / "bin" / "python"
        own = f"#!{python}\nimport sys\nfrom kanawa.cli.main import main\nsys.exit(main())\n"
        forked = f'#!/bin/sh\nPYTHONPATH={site}${{PYTHONPATH:+:$PYTHONPATH}} exec {warm_command} "$@"\n'
        scripts = {"kanawa": forked if quick else own}
        if quick:
            scripts["pip"] = f'#!/bin/sh\nverb=$1; shift\nexec uv pip "$verb" --no-deps --python {python} "$@"\n'
        for name, text in scripts.items():
            python.with_name(name).write_text(text)
            python.with_name(name).chmod(0o755)
        path = f"{python.parent}{os.pathsep}{variables.get('PATH', os.environ['PATH'])}"
        return python, {**os.environ, **variables, "PATH": path, "VIRTUAL_ENV": str(environment)}

    return make


@pytest.fixture(scope="session")
def shared_environment(tmp_path_factory, warm_command):
    """The installed packages, on CPU, with a cache of their own."""
    here = pathlib.Path(sys.executable)
    return here, {
        **os.environ,
        # A page that measures kernels writes a table, which no other test shall meet.
        "KANAWA_TUNING": str(tmp_path_factory.mktemp("tuning") / "tuning.json"),
        "PATH": os.pathsep.join([str(pathlib.Path(warm_command).parent), str(here.parent), os.environ["PATH"]]),
        "KANAWA_CACHE": str(tmp_path_factory.mktemp("cache")),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": xla_flags(),
        "COLUMNS": "120",
    }


@pytest.fixture
def replay(shared_environment, environment_with_pip, tmp_path):
    """Replays a page in an empty folder; pages that install something get an environment of their own."""

    def replay_page(name, *, nightly=False, quick=True):
        blocks = RUN[name]
        python, environment = shared_environment
        if any("pip install" in block.text for block in blocks if block.is_run):
            python, environment = environment_with_pip(environment, quick=quick)
        folder = tmp_path / "here"
        folder.mkdir()
        wrong = Replay(name, folder, environment, python).run(blocks, nightly=nightly)
        if wrong is not None:
            pytest.fail(str(wrong), pytrace=False)

    return replay_page
