"""The star: plugins import core and never each other; inside core, imports point one way.

Read from the AST, imports inside functions included: a late import is still a dependency.
"""

import ast
from collections.abc import Iterator

IMPORT_NAMES = {
    "core": "kanawa",
    "layers": "kanawa_layers",
    "parallel": "kanawa_parallel",
    "backends-cpu": "kanawa_backends_cpu",
    "backends-gpu": "kanawa_backends_gpu",
    "backends-tpu": "kanawa_backends_tpu",
    "backends-neuron": "kanawa_backends_neuron",
    "kernel-tools": "kanawa_kernel_tools",
    "runtime": "kanawa_runtime",
}
# A module may import its own rank and those before it; testing and cli don't know each other.
RANKS = (
    ("_version", "errors", "guarded_read", "local_path", "status"),
    ("config",),
    ("plugins",),
    ("arrays",),
    ("foreign",),
    ("module",),
    ("kernels",),
    ("contracts",),
    ("composition",),
    ("testing",),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}
FACADE = "kanawa"
WITHOUT_JAX = {"_version", "errors", "guarded_read", "local_path", "status", "config", "plugins"}
ARRAY_LIBRARIES = {"jax", "jaxlib", "numpy", "jaxtyping"}

# (importing module, imported module): why it has to be. A pair that is no longer needed fails too.
ALLOWED: dict[tuple[str, str], str] = {}


def imports(tree: ast.Module, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yields (line, absolute name) of everything imported, names of a from-import included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                keep = len(parts) - node.level + (1 if is_package else 0)
                base = ".".join([*parts[:keep], *filter(None, [base])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def of(source) -> list[tuple[int, str]]:
    return list(imports(source.tree, source.module, source.path.name == "__init__.py"))


def subpackage(name: str) -> str | None:
    """Returns the part of core a dotted name lies in, the facade itself, or None outside core."""
    parts = name.split(".")
    if parts[0] != FACADE:
        return None
    return parts[1] if len(parts) > 1 and parts[1] in RANK else FACADE


def test_plugins_never_import_each_other(sources):
    breaches = []
    for source in sources:
        own = {IMPORT_NAMES[source.package], FACADE}
        for line, name in of(source):
            top = name.split(".")[0]
            if top in IMPORT_NAMES.values() and top not in own:
                breaches.append(f"{source.where}:{line} imports {top}")
    assert not breaches, "\n".join(breaches)


def test_tests_of_a_package_import_only_it_and_core_and_the_kernel_tools(package_tests):
    breaches = []
    for source in package_tests:
        own = {IMPORT_NAMES[source.package], FACADE, IMPORT_NAMES["kernel-tools"]}
        for node in ast.walk(source.tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for top in (name.split(".")[0] for name in names):
                if top in IMPORT_NAMES.values() and top not in own:
                    breaches.append(f"{source.where}:{node.lineno} imports {top}: see tests/integration")
    assert not breaches, "\n".join(breaches)


def test_every_part_of_core_has_a_rank(sources):
    parts = {source.module.split(".")[1] for source in sources if source.module.startswith("kanawa.")}
    assert parts <= set(RANK), f"give these a rank: {sorted(parts - set(RANK))}"


def test_inside_core_imports_point_one_way(sources):
    breaches, used = [], set()
    for source in sources:
        if source.package != "core" or source.module == FACADE:
            continue
        here = source.module.split(".")[1]
        for line, name in of(source):
            there = subpackage(name)
            if there is None or there == here:
                continue
            facade = there == FACADE and RANK[here] < RANK["testing"]
            upward = there != FACADE and (RANK[there] > RANK[here] or {here, there} == {"testing", "cli"})
            if not (facade or upward):
                continue
            allowed = [pair for pair in ALLOWED if pair[0] == source.module and name.startswith(pair[1])]
            used.update(allowed)
            if not allowed:
                breaches.append(f"{source.where}:{line} {here} imports {name}")
    assert not breaches, "\n".join(breaches)
    assert set(ALLOWED) == used, f"no longer needed: {sorted(set(ALLOWED) - used)}"


def test_config_and_plugins_know_no_arrays(sources):
    breaches = []
    for source in sources:
        parts = source.module.split(".")
        if source.package == "core" and (len(parts) == 1 or parts[1] in WITHOUT_JAX):
            for line, name in of(source):
                if name.split(".")[0] in ARRAY_LIBRARIES:
                    breaches.append(f"{source.where}:{line} imports {name}")
    assert not breaches, "\n".join(breaches)


def test_an_upward_import_inside_a_function_is_seen():
    tree = ast.parse("def f():\n    from kanawa.cli import main\n    from ..kernels import x\n")
    names = [name for _, name in imports(tree, "kanawa.config.node", is_package=False)]
    assert names == ["kanawa.cli.main", "kanawa.kernels.x"]
    assert [subpackage(name) for name in names] == ["cli", "kernels"]
