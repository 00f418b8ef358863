"""What pages name exists: hooks, verbs, files, modules, classes, catalog names, and the order of core's parts."""

import ast
import pathlib
import re
import subprocess
import tomllib

import pytest
from floors import FLOORS

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = sorted(path.name for path in (ROOT / "packages").iterdir())
CODE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
DOTTED = re.compile(r"^(kanawa(?:_[a-z_]+)?(?:\.\w+)+)")
CLASS = re.compile(r"^([A-Z][a-z]+(?:[A-Z]+[a-z]+)+)(?:\(.*\))?$")
PATH = re.compile(r"^[\w./-]*/[\w./-]*\.(?:py|md|toml|txt)$|^[\w-]+\.py$")
#: Classes of others, or of the page's own example.
OTHERS = {
    *("MaxText", "RecurrentGemmaForCausalLM", "ForCausalLM", "MyLayer", "UseMyLayer", "PyTorch"),
    # Of Kubernetes.
    *("JobSet", "FailJobSet", "RestartJobSetAndIgnoreMaxRestarts", "BackoffLimitExceeded", "DisruptionTarget"),
    *("KillWait", "GraceTime"),  # of Slurm
    "AsyncCheckpointer",  # of orbax
    "ElasticIterator",  # of grain
    # Of TorchTitan, in the glossary.
    *("JobConfig", "TrainSpec", "ModelProtocol", "TransformerBlock", "TokenChoiceTopKRouter", "StateDictAdapter"),
}
#: Files that a run, a model or a reader's own package has.
THEIRS = re.compile(
    r"^(train_compile|my_package|my-[a-z]+|runs|src|exports|downloads|checkpoints|signum|group|status|swish)"
)


def _tracked(*patterns: str) -> list[str]:
    listing = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in listing.stdout.split("\0") if name and (ROOT / name).exists()]


def _pages() -> dict[str, str]:
    names = _tracked("README.md", "CONTRIBUTING.md", "docs/*.md", "packages/*/README.md")
    return {name: (ROOT / name).read_text() for name in names}


PAGES = _pages()
TRACKED = _tracked()


def named(text: str) -> list[str]:
    """Returns what a page's prose sets in code."""
    return CODE.findall(FENCE.sub("", text))


def source(package: str) -> pathlib.Path:
    """Returns the import package of a folder in packages/."""
    (folder,) = (path for path in (ROOT / "packages" / package / "src").iterdir() if path.is_dir())
    return folder


@pytest.fixture(scope="module")
def definitions(sources, package_tests) -> dict[str, set[str]]:
    """Every module, with the names it defines or imports at its top level."""
    found: dict[str, set[str]] = {}
    for file in [*sources]:
        names = found.setdefault(file.module, set())
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.ImportFrom | ast.Import):
                names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names.update(target.id for target in targets if isinstance(target, ast.Name))
    return found


def resolves(dotted: str, definitions: dict[str, set[str]]) -> bool:
    """Tells whether a dotted name is a module, or something that a module has."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        if module in definitions:
            return length == len(parts) or parts[length] in definitions[module]
    return False


def test_dotted_names_lead_somewhere(definitions):
    groups = {f"kanawa.{kind}" for kind in _kinds()}
    wrong = [
        f"{page}: {match[1]}"
        for page, text in PAGES.items()
        for match in filter(None, map(DOTTED.match, named(text)))
        if match[1] not in groups and match[1] != "kanawa.KIND" and not resolves(match[1], definitions)
    ]
    assert not wrong, "\n".join(wrong)


def _kinds() -> set[str]:
    kinds = {"plugins"}
    for package in PACKAGES:
        project = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]
        kinds |= {group.removeprefix("kanawa.") for group in project.get("entry-points", {})}
        declared = (source(package) / "plugin.py", source(package) / "plugins" / "kinds.py")
        text = "".join(file.read_text() for file in declared if file.exists())
        kinds |= set(re.findall(r'Kind\(\s*"([a-z_]+)"', text))
    return kinds


def test_classes_exist(definitions):
    classes = set().union(*definitions.values()) | OTHERS
    wrong = [
        f"{page}: {match[1]}"
        for page, text in PAGES.items()
        for match in filter(None, map(CLASS.match, named(text)))
        if match[1] not in classes
    ]
    assert not wrong, "\n".join(wrong)


def test_files_exist():
    wrong = []
    for page, text in PAGES.items():
        package = page.split("/")[1] if page.startswith("packages/") else None
        for name in filter(PATH.match, named(text)):
            if THEIRS.match(name):
                continue
            own = [file for file in TRACKED if file.startswith(f"packages/{package}/")] if package else TRACKED
            if name not in TRACKED and not any(file.endswith(f"/{name}") for file in own):
                wrong.append(f"{page}: {name}")
    assert not wrong, "\n".join(wrong)


#: The hooks that a backend's parts answer (`kanawa.plugins.Backend`).
BACKEND_HOOKS = {
    "devices": "kanawa_device_specs",
    "mesh_rules": "kanawa_mesh_rules",
    "compiler_options": "kanawa_compiler_options",
    "topology": "kanawa_topology",
    "kernel_schedules": "kanawa_kernel_schedules",
    "recorded_cycles": "kanawa_recorded_cycles",
    "findings": "kanawa_doctor",
    "process_environment": "kanawa_process_environment",
    "prepare_process": "kanawa_process_started",
    "compile_cache_key": "kanawa_compile_cache_key",
    "program_traits": "kanawa_program_traits",
}


def implemented(tree: ast.AST) -> set[str]:
    """Returns the hooks that a file implements."""
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any("hookimpl" in ast.unparse(d) for d in node.decorator_list)
    }


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "core"])
def test_a_readme_lists_the_packages_hooks_and_verbs(package):
    readme = PAGES[f"packages/{package}/README.md"]
    tree = ast.parse((source(package) / "plugin.py").read_text())
    hooks = implemented(tree)
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if ast.unparse(call.func) == "Backend":
            hooks |= {BACKEND_HOOKS[word.arg] for word in call.keywords if word.arg in BACKEND_HOOKS}
    hooks |= _hooks_of_a_backend(tree)
    told = {name for name in named(readme) if re.fullmatch(r"kanawa_[a-z_]+", name)}
    packages = {source(name).name for name in PACKAGES}
    assert told - packages == hooks
    verbs = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Command") and node.args
    }
    missing = {verb for verb in verbs if f"`{verb}`" not in readme}
    assert not missing


def _hooks_of_a_backend(tree: ast.Module) -> set[str]:
    """Returns the hooks that a module's `Backend(...)` answers: every backend's, and those of the parts it names."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "Backend"]
    parts = {keyword.arg for call in calls for keyword in call.keywords}
    always = {"kanawa_device_specs", "kanawa_mesh_rules", "kanawa_doctor"} if calls else set()
    return always | {f"kanawa_{part}" for part in parts & {"compiler_options", "topology", "calibrations"}}


def test_pages_give_the_order_of_cores_parts():
    beside = ("_version", "status", "local_path", "guarded_read")
    floors = [[name for name in floor if name not in beside] for floor in FLOORS["core"]]
    order = " < ".join(", ".join(floor) for floor in floors if floor)
    for page in ("docs/architecture.md", "packages/core/README.md"):
        assert order in re.sub(r"\s+", " ", PAGES[page]), f"{page} should say: {order}"


def test_the_readme_counts_what_there_is():
    projects = [tomllib.loads((ROOT / "packages" / p / "pyproject.toml").read_text())["project"] for p in PACKAGES]
    groups = [project.get("entry-points", {}) for project in projects]
    kinds = ("models", "hf_families", "modifiers")
    offered = [sum(len(group.get(f"kanawa.{kind}", {})) for group in groups) for kind in kinds]
    text = re.sub(r"\s+", " ", PAGES["README.md"])
    told = re.search(r"There are (\d+) models of (\d+) families .+? and (\d+) modifiers", text)
    assert told, "the README says how many models, families and modifiers there are"
    assert [int(number) for number in told.groups()] == offered


def test_a_stale_name_is_seen(definitions):
    assert resolves("kanawa.contracts.FeedForward", definitions)
    assert not resolves("kanawa.contracts.FeedBackward", definitions)
    assert named("`a` and\n```sh\n`b`\n```\n") == ["a"]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_changelog_begins_with_the_version_at_hand(package):
    version = re.search(r'__version__ = "(.+)"', (source(package) / "_version.py").read_text())[1]
    changelog = (ROOT / "packages" / package / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (\S+) \((.+)\)$", changelog, re.MULTILINE)
    assert headings, "a heading a version: ## 0.1.0 (unreleased)"
    assert headings[0][0] == version
    assert re.search(r"^- \S", changelog, re.MULTILINE)
