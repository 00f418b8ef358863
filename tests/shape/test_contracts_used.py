"""No contract that nothing runs: what core asks plugins to implement, something outside of the contracts calls."""

import ast

#: Where naming a contract is no use of it: its definition, its conformance class, and what `new plugin` writes.
NO_USE = ("kanawa.contracts", "kanawa.testing", "kanawa.cli.scaffold", "kanawa.plugins.kinds", "kanawa.plugins.specs")


def names_in(tree: ast.AST) -> set[str]:
    """Returns every name, attribute and string of a file: hooks are called by their names as text."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


def used(sources) -> set[str]:
    return set().union(*(names_in(s.tree) for s in sources if not s.module.startswith(NO_USE)))


def test_every_contract_is_used(sources):
    contracts = {
        node.name: source.where
        for source in sources
        if source.module.startswith("kanawa.contracts")
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and "Protocol" not in map(ast.unparse, node.bases)  # needs no naming
    }
    calls = used(sources)
    idle = {name: where for name, where in contracts.items() if name not in calls}
    assert len(contracts) > 20
    assert not idle, f"nothing runs these: {idle}"


def test_every_hook_is_called(sources):
    (specs,) = (source for source in sources if source.module == "kanawa.plugins.specs")
    hooks = {n.name for n in specs.tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("kanawa_")}
    idle = hooks - used(sources)
    assert len(hooks) > 10
    assert not idle, f"nothing calls {sorted(idle)}"


def test_an_idle_contract_is_seen():
    tree = ast.parse("class A(B):\n    x: C.D = call('kanawa_e')\n")
    assert names_in(tree) == {"B", "C", "D", "call", "x", "kanawa_e"}
