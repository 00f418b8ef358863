"""The star: plugins import core and never each other; what is below arrays knows no array library.

Read from the AST, imports inside functions included: a late import is still a dependency.
"""

import ast

from tree_imports import names_imported

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
FACADE = "kanawa"
WITHOUT_JAX = {"_version", "errors", "guarded_read", "local_path", "status", "config", "plugins"}
ARRAY_LIBRARIES = {"jax", "jaxlib", "numpy", "jaxtyping"}


def of(source) -> list[tuple[int, str]]:
    return list(names_imported(source.tree, source.module, source.path.name == "__init__.py"))


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


def test_config_and_plugins_know_no_arrays(sources):
    breaches = []
    for source in sources:
        parts = source.module.split(".")
        if source.package == "core" and (len(parts) == 1 or parts[1] in WITHOUT_JAX):
            for line, name in of(source):
                if name.split(".")[0] in ARRAY_LIBRARIES:
                    breaches.append(f"{source.where}:{line} imports {name}")
    assert not breaches, "\n".join(breaches)


def test_an_import_inside_a_function_is_seen():
    tree = ast.parse("def f():\n    from kanawa.cli import main\n    from ..kernels import x\n")
    names = [name for _, name in names_imported(tree, "kanawa.config.node", is_package=False)]
    assert names == ["kanawa.cli.main", "kanawa.kernels.x"]
