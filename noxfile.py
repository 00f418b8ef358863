"""Sessions that build, test and measure the packages; `nox -l` lists them.

Every session works on wheels built from this checkout, never on the source tree: a file missing
from a wheel or an undeclared dependency fails here and not at a user's.
"""

import functools
import json
import os
import pathlib
import secrets
import shutil
import subprocess
import sys
import tempfile

import nox
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = True
nox.options.download_python = "never"
os.environ["UV_PYTHON_DOWNLOADS"] = "never"
# Sessions start Python hundreds of times: without bytecode kept, importing JAX alone takes 5 s instead of 1.5 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

ROOT = pathlib.Path(__file__).parent
PACKAGES = (
    "core",
    "layers",
    "parallel",
    "backends-cpu",
    "backends-gpu",
    "backends-tpu",
    "backends-neuron",
    "kernel-tools",
    "runtime",
)
EVERYTHING = ("kanawa[train,hf,cpu,neuron,kernel-tools]", "kanawa-backends-gpu", "kanawa-backends-tpu")
#: Services whose libraries are extras; the larger one is tested with everything installed.
LOGGERS = "kanawa-runtime[tensorboard,wandb]"
#: Libraries whose modules fit our slots; a page of the documentation uses them.
ADAPTED = "kanawa-layers[equinox,flax]"
#: XLA's newer way to compile fusions takes a step five times as long as its older one, a whole program twice as long.
#: Cut into pieces for many threads, a small program takes half as long again on the few cores that all tests share.
#: What runs at every change uses the older one and one piece; the other sessions compile as users' processes do.
QUICK = {"XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"}
RUN = "runs/quickstart"
#: What a model of 2M parameters continues well after three minutes, and how: drawn so, it seldom repeats itself.
PROMPTS = (
    "def __init__(self, name, value",
    'def write(self, data):\n    """Write',
    'def read(self, size=-1):\n    """Read',
)
SAMPLING = ("--max-tokens", "40", "--temperature", "0.6", "--top-p", "0.9")
EXTRA_STEPS = 50


@functools.cache
def wheel_folder() -> tempfile.TemporaryDirectory:
    """Returns this nox run's own folder for wheels: two runs at once can't disturb each other."""
    return tempfile.TemporaryDirectory(prefix="kanawa-wheels-")


def constraints_file(session: nox.Session) -> pathlib.Path:
    """Returns the file that maps each distribution to its wheel; the first call builds them all."""
    folder = pathlib.Path(wheel_folder().name)
    constraints = folder / "local.txt"
    if not constraints.exists():
        build = ("uv", "build", "--quiet", "--wheel", f"--out-dir={folder}")
        for package in PACKAGES:
            session.run(*build, f"packages/{package}")
        wheels = {wheel.name.split("-")[0]: wheel.as_uri() for wheel in folder.glob("*.whl")}
        lines = [f"{name.replace('_', '-')} @ {uri}\n" for name, uri in sorted(wheels.items())]
        constraints.write_text("".join(lines))
    return constraints


def install(session: nox.Session, *requirements: str) -> None:
    """Installs requirements; every kanawa distribution among them comes from its fresh wheel."""
    session.install("-c", str(constraints_file(session)), *requirements)


def test_group(package: str) -> str:
    """Returns the uv argument for a package's test dependencies."""
    return f"--group=packages/{package}/pyproject.toml:test"


def distribution(package: str) -> str:
    """Returns what a package is installed as."""
    return "kanawa" if package == "core" else f"kanawa-{package}"


def import_name(package: str) -> str:
    """Returns what a package is imported as."""
    return distribution(package).replace("-", "_")


def test_environment() -> dict[str, str | None]:
    """Returns the variables of a test process: CPU only, quick to compile, one compile cache for all sessions."""
    return {
        "PYTHONPATH": None,
        "JAX_PLATFORMS": "cpu",
        # Small programs run once or twice: optimising their machine code takes four times as long as all the rest.
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        # Kernels that were measured on the developer's machine are no test's business.
        "KANAWA_TUNING": str(pathlib.Path(wheel_folder().name) / "tuning.json"),
    }


def quick_flags(session: nox.Session) -> dict[str, str]:
    """Returns QUICK where the installed XLA knows it: a process that gives it another flag is ended."""
    program = "import jax; jax.devices(); print('known')"
    environment = test_environment() | QUICK
    ended = (1, -6, 134)
    said = session.run("python", "-c", program, env=environment, silent=True, success_codes=(0, *ended))
    return QUICK if "known" in str(said) else {}


def run_tests(
    session: nox.Session, folder: str, *arguments: str, quick: bool = False, codes: tuple[int, ...] = (0,)
) -> None:
    """Runs the tests of a folder from an empty one, after checking that wheels are under test."""
    root = ROOT / folder
    packages = (root.name,) if root.name in PACKAGES else PACKAGES
    # After a worker's crash, pytest-xdist waits for ever for the rest of that worker's file: then the run ends.
    workers = ("-n", "2", "--dist=loadfile", "--max-worker-restart=0") if (os.cpu_count() or 1) > 1 else ()
    environment = test_environment() | (quick_flags(session) if quick else {})
    check = ("python", str(ROOT / "tests" / "installed.py"), *map(import_name, packages))
    command = (
        "python",
        "-m",
        "pytest",
        f"--config-file={ROOT / 'pytest.ini'}",
        f"--rootdir={root}",
    )
    tests_folder = root / "tests" if root.name in PACKAGES else root
    with session.chdir(session.create_tmp()):
        session.run(*check, env=environment)
        command += (
            "-p",
            "no:cacheprovider",
            # By a thread, which also ends a process that waits in native code.
            "--timeout=600",
            "--timeout-method=thread",
            *workers,
            *arguments,
            *session.posargs,
        )
        session.run(*command, str(tests_folder), env=environment, success_codes=codes)


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def tests(session: nox.Session, package: str) -> None:
    """Each package's tests on its wheel, alone with its declared dependencies; then integration."""
    install(session, distribution(package), test_group(package), "pytest-xdist", "pytest-timeout")
    run_tests(session, f"packages/{package}", quick=True)
    if not session.posargs:
        session.notify("integration")
        session.notify("footprint")


@nox.session(default=False)
def integration(session: nox.Session) -> None:
    """Several packages together: experiments, eight devices, kills, strangers' plugins."""
    install(session, *EVERYTHING, LOGGERS, test_group("runtime"), ADAPTED, "pytest-xdist", "pytest-timeout", "uv")
    # Its conftest has the files that take long begin; those with most tests take little.
    run_tests(session, "tests/integration", "--no-loadscope-reorder", quick=True)


@nox.session(default=False)
def footprint(session: nox.Session) -> None:
    """How many distributions and megabytes the quickstart needs; fails beyond 50 or 750."""
    install(session, "kanawa[train]")
    session.run("python", "tests/footprint.py", env={"PYTHONPATH": None})


@nox.session(default=False)
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def minimums(session: nox.Session, package: str) -> None:
    """Each package's tests on the lowest versions it declares."""
    declared = nox.project.load_toml(f"packages/{package}/pyproject.toml")["project"]["dependencies"]
    files = {f"-rpackages/{name}/pyproject.toml" for name in (package, "core")}
    install(session, *sorted(files), "--resolution=lowest-direct")
    session.install("--no-deps", "-c", str(constraints_file(session)), distribution(package))
    install(session, test_group(package), "pytest-xdist", "pytest-timeout")
    command = ("uv", "pip", "list", "--format=json")
    listing = session.run(*command, silent=True, stderr=subprocess.DEVNULL)
    found = {entry["name"]: Version(entry["version"]) for entry in json.loads(listing or "[]")}
    for requirement in map(Requirement, declared):
        floor = next(Version(s.version) for s in requirement.specifier if s.operator == ">=")
        installed = found[canonicalize_name(requirement.name)]
        if installed != floor:
            session.error(f"{requirement.name} {installed} is installed, the declared floor is {floor}")
    run_tests(session, f"packages/{package}")


@nox.session(python=">=3.12", default=False)
def latest(session: nox.Session) -> None:
    """Core and integration on Python 3.12 or newer, which brings the newest JAX allowed."""
    install(session, *EVERYTHING, ADAPTED, test_group("runtime"), "pytest-xdist", "pytest-timeout", "uv")
    run_tests(session, "packages/core")
    run_tests(session, "tests/integration")


@nox.session(default=False)
def nightly(session: nox.Session) -> None:
    """The tests marked nightly, too slow for every change, in every package and together."""
    install(session, *EVERYTHING, test_group("runtime"), ADAPTED, "pytest-xdist", "pytest-timeout", "uv")
    nothing_marked = 5
    session.env["KANAWA_CHANCE"] = "1"
    for folder in (*(f"packages/{package}" for package in PACKAGES), "tests/integration"):
        run_tests(session, folder, "-m", "nightly", "--timeout=1200", codes=(0, nothing_marked))
    session.notify("ray")


@nox.session(default=False)
def ray(session: nox.Session) -> None:
    """Jobs and servers on a real Ray cluster of two nodes; Ray is large, so nothing else installs it."""
    install(session, *EVERYTHING, "kanawa-runtime[ray,serve]", test_group("runtime"), "pytest-xdist", "pytest-timeout")
    run_tests(session, "packages/runtime", "-k", "test_ray")
    run_tests(session, "tests/integration", "-k", "test_ray")


@nox.session(default=False)
def lm_eval(session: nox.Session) -> None:
    """Scores tasks with `lm-eval` through `kanawa serve` and in its own process, and with inspect-ai."""
    install(
        session,
        *EVERYTHING,
        "kanawa[serve]",
        "kanawa-runtime[lm-eval,evaluate]",
        "lm-eval[api]>=0.4.9",
        "inspect-ai>=0.3",
    )
    session.run("python", "tests/lm_eval_agreement.py", env=test_environment())
    install(session, test_group("runtime"), "pytest-xdist", "pytest-timeout")
    run_tests(session, "tests/integration", "-k", "test_lm_eval_model or test_inspect_ai")


@nox.session(default=False)
def tinker(session: nox.Session) -> None:
    """Runs the recipes of the public `tinker` client, unmodified, against `kanawa serve --train`."""
    install(
        session, *EVERYTHING, "kanawa[serve]", "kanawa-runtime[train-service]", test_group("runtime"), "tinker>=0.38"
    )
    options = ("-p", "no:cacheprovider", "-x", f"--config-file={ROOT / 'pytest.ini'}")
    session.run("python", "-m", "pytest", *options, "tests/integration/test_tinker_client.py", env=test_environment())


@nox.session(default=False)
def aot_tpu(session: nox.Session) -> None:
    """Compiles kernels and steps for TPUs without one, with the public libtpu (about 1 GB)."""
    install(session, *EVERYTHING, "kanawa-backends-tpu[tpu]", test_group("backends-tpu"))
    session.install("pytest-xdist", "pytest-timeout")
    session.env["KANAWA_AOT"] = "1"
    run_tests(session, "packages/backends-tpu")
    run_tests(session, "packages/parallel", "-k", "over_a_pod")


@nox.session(default=False)
def aot_gpu(session: nox.Session) -> None:
    """Compiles kernels and steps for NVIDIA GPUs without one, with the CUDA wheels (about 5 GB)."""
    install(session, *EVERYTHING, "kanawa-backends-gpu[compile]", test_group("backends-gpu"))
    session.install("pytest-xdist", "pytest-timeout")
    session.env["KANAWA_AOT"] = "1"
    run_tests(session, "packages/backends-gpu")
    run_tests(session, "packages/parallel", "-k", "over_a_pod")


@nox.session
def lint(session: nox.Session) -> None:
    """Style: ruff with the rules of ruff.toml; `-- --fix` mends what it can."""
    session.install("ruff>=0.12")
    session.run("ruff", "check", *session.posargs, ".")


@nox.session
def types(session: nox.Session) -> None:
    """Types: `mypy --strict` on every package in one process; `-- layers` for some."""
    # The conformance kit is checked too, and it is written with pytest.
    install(session, *EVERYTHING, "kanawa[serve]", ADAPTED, test_group("core"), test_group("runtime"), "mypy>=1.15")
    named = [word for word in session.posargs if word in PACKAGES]
    folders = [f"packages/{package}/src" for package in named or PACKAGES]
    path = os.pathsep.join(f"packages/{package}/src" for package in PACKAGES)
    options = [word for word in session.posargs if word not in PACKAGES]
    session.run("mypy", "--strict", "--cache-dir=.cache/mypy", *options, *folders, env={"MYPYPATH": path})


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as a site in .cache/site, API reference included; broken links and unlisted pages fail."""
    # MkDocs 2 takes other configurations and no plugins; Material for MkDocs is written for 1.6.
    session.install("mkdocs>=1.6,<2", "mkdocs-material>=9.6", "mkdocstrings[python]>=0.30", "ruff>=0.12")
    session.run("mkdocs", "build", "--strict", "--quiet", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def shape(session: nox.Session) -> None:
    """Laws of the tree: imports, import weight, file sizes, wheel metadata, entry points."""
    install(session, "kanawa", "pytest>=8.3")
    environment = {"KANAWA_WHEELS": str(constraints_file(session).parent), "PYTHONPATH": None}
    session.run("python", "-m", "pytest", "tests/shape", *session.posargs, env=environment)


@nox.session(default=False)
def quickstart(session: nox.Session) -> None:
    """Trains a small model on this Python's own source, then reports and writes some code."""
    install(session, "kanawa[train]")
    command = ["kanawa", "train", "quickstart", "--run", RUN]
    finished = finished_step(ROOT / RUN / "events.jsonl")
    if finished is not None:
        command += ["--set", f"steps={finished + EXTRA_STEPS}"]
    session.run(*command, *session.posargs)
    session.run("kanawa", "report", RUN)
    prompts = (word for prompt in PROMPTS for word in ("--prompt", prompt))
    session.run("kanawa", "generate", RUN, *prompts, *SAMPLING)


def finished_step(events: pathlib.Path) -> int | None:
    """Returns the last step of a finished run; None if it never started or was stopped."""
    if not events.exists():
        return None
    finished = None
    for line in events.read_text().splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue  # a torn last line: the writer was killed
        if event["event"] in ("run_started", "run_ended"):
            finished = event["step"] if event.get("outcome") == "done" else None
    return finished


@nox.session(default=False)
def verifiers(session: nox.Session) -> None:
    """Plays environments of the `verifiers` package, unmodified; its programs fetch their libraries from PyPI."""
    # Not the group of tests: the package and theirs want different versions of openai's client.
    wanted = ("pytest>=8.3", "pytest-timeout", "hypothesis>=6.120", "beartype>=0.20", "tokenizers>=0.21", "uv")
    install(session, *EVERYTHING, "kanawa[chat]", "kanawa-runtime[verifiers]", *wanted)
    options = ("-p", "no:cacheprovider", "-x", "--timeout=600", f"--config-file={ROOT / 'pytest.ini'}")
    file = "packages/runtime/tests/rollouts/test_verifiers.py"
    session.run("python", "-m", "pytest", *options, file, env=test_environment())


@nox.session(default=False)
def parity(session: nox.Session) -> None:
    """Compares fresh models of every family with `transformers` and `diffusers`, both ways; needs torch from PyPI."""
    folder, scripts = pathlib.Path(session.create_tmp()).resolve(), ROOT / "packages/layers/tests/fixtures"
    makers, fresh, exported = folder / "transformers", folder / "fresh", folder / "exported"
    # uv and pip choose different torch wheels; what the fixtures were made with came from pip.
    python = str(makers / "bin" / "python")
    if not makers.exists():
        session.run(sys.executable, "-m", "venv", str(makers), external=True)
        wanted = ("torch==2.13.0", "transformers>=5.23", "diffusers>=0.42", "safetensors", "numpy")
        session.run(python, "-m", "pip", "install", "--quiet", *wanted, external=True)
    # Both libraries import torchvision where it is there, and fail if it was built for another torch; models need none.
    session.run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision", external=True)
    session.run(python, "-c", "import diffusers, transformers; transformers.ViTForImageClassification", external=True)
    shutil.rmtree(exported, ignore_errors=True)
    session.env["HF_HUB_OFFLINE"] = "1"
    seed = f"--seed={secrets.randbelow(1000)}"
    for script in ("make_fixtures.py", "make_diffusion.py"):
        session.run(python, str(scripts / script), str(fresh), seed, external=True)
    install(session, "kanawa-layers", test_group("layers"), "pytest-xdist", "pytest-timeout")
    session.env["KANAWA_PARITY"] = str(fresh)
    session.env["KANAWA_PARITY_EXPORT"] = str(exported)
    run_tests(session, "packages/layers", "-k", "test_parity")
    session.run(python, str(scripts / "verify_export.py"), str(exported), str(fresh), external=True)
    install(session, *EVERYTHING, "kanawa[chat]", test_group("runtime"))
    session.run("python", "tests/answers_in_transformers.py", python, env=test_environment())


@nox.session(default=False)
def benchmarks(session: nox.Session) -> None:
    """Runs the scripts of benchmarks/, or those named after `--`; each prints its ratios."""
    install(session, *EVERYTHING)
    scripts = sorted((ROOT / "benchmarks").glob("*.py"))
    # Those that need a GPU, or another library's environment, run by hand on a machine with one.
    by_hand = {
        "data_pipeline_side",
        "serving",
        "serving_http",
        "serving_side",
        "torch_llama",
        "trl_side",
        "sft_beside_trl",
        "preferences_beside_trl",
        "grpo_beside_trl",
        "learning_curves",
        "eval_beside_lm_eval",
        "epoch_memory",
    }
    runnable = [
        s for s in scripts if "__main__" in s.read_text() and not s.name.startswith("gpu_") and s.stem not in by_hand
    ]
    named = [ROOT / "benchmarks" / f"{name}.py" for name in session.posargs]
    for script in named or runnable:
        session.run("python", str(script), env={"PYTHONPATH": None, "JAX_PLATFORMS": "cpu"})


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Writes the exact versions and hashes that a server's host installs: packages/runtime/serve.lock."""
    folder = constraints_file(session).parent
    # Ours come from their own wheels; everything else by its hash.
    ours = [f"--no-emit-package={distribution(package)}" for package in PACKAGES]
    asked = folder / "serve.in"
    asked.write_text("kanawa-runtime[serve,hf]\nkanawa-layers\n")
    session.run(
        *("uv", "pip", "compile", "--quiet", "--universal", "--python-version=3.11", "--generate-hashes"),
        *(f"--find-links={folder}", "--no-header", "--no-annotate", *ours),
        *(str(asked), "--output-file=packages/runtime/serve.lock"),
    )


@nox.session(default=False)
def dev(session: nox.Session) -> None:
    """Makes .venv-dev with everything editable, for editors and quick test runs."""
    session.run("uv", "venv", "--clear", "--python", sys.executable, ".venv-dev")
    editable = [f"--editable=packages/{package}" for package in PACKAGES]
    groups = [test_group(package) for package in PACKAGES]
    tools = ["ruff>=0.12", "mypy>=1.15", "pytest-xdist", "pytest-timeout", "nox[uv]"]
    session.run("uv", "pip", "install", "--python", ".venv-dev", *editable, *groups, *tools)
