"""The facade: every name it promises exists, and type checkers see the same names."""

import ast
import inspect

import pytest
import sashimono as sm


def test_every_promised_name_resolves():
    missing = []
    for name in sm.__all__:
        try:
            getattr(sm, name)
        except (ImportError, AttributeError) as error:
            missing.append(f"{name}: {error}")
    assert not missing


def test_type_checkers_see_what_is_promised():
    tree = ast.parse(inspect.getsource(sm))
    (block,) = [n for n in tree.body if isinstance(n, ast.If)]
    declared = {f"{n.module}.{a.name}" for n in block.body for a in n.names}
    assert declared == {f"sashimono.{module}.{name}" for name, module in sm._HOME.items()}


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'sashimono' has no attribute 'Modul'"):
        sm.Modul  # noqa: B018


def test_compose_is_callable_however_its_package_was_imported():
    import sashimono.compose as package
    import sashimono.compose.target  # noqa: F401

    assert package.parse_target is sm.parse_target
    with pytest.raises(sm.SashimonoError, match="no installed distribution provides 'nowhere'"):
        sm.compose("nowhere")
