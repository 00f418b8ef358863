"""Names of callables: catalog first, else the shortest public path to the same object."""

import collections
import functools
import json
import sys
import types
from typing import Any

import pytest
from kanawa.config import (
    CallableNameError,
    Config,
    connect_catalog,
    public_name,
    resolve_callable,
    to_json,
    to_text,
)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A package whose function lives in a private module and is exported twice."""
    names = ["shop", "shop.api", "shop.api.deep", "shop._impl"]
    modules = {name: types.ModuleType(name) for name in names}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    impl = modules["shop._impl"]
    exec("def buy(): pass\ndef hidden(): pass\ndef wrapped(): pass", vars(impl))
    for name in ("shop.api", "shop.api.deep"):
        modules[name].buy = impl.buy  # type: ignore[attr-defined]
    return impl


def test_shortest_public_path(package: Any) -> None:
    assert public_name(package.buy) == "shop.api:buy"


def test_a_parent_package_comes_first(package: Any) -> None:
    sys.modules["shop"].buy = package.buy  # type: ignore[attr-defined]
    assert public_name(package.buy) == "shop:buy"


def test_never_a_private_path(package: Any) -> None:
    with pytest.raises(CallableNameError, match="no public module:attribute is this object; export"):
        public_name(package.hidden)


def test_another_object_of_the_same_name_does_not_count(package: Any) -> None:
    sys.modules["shop"].buy = print  # type: ignore[attr-defined]
    assert public_name(package.buy) == "shop.api:buy"


def test_a_wrapper_is_found_under_its_own_name(package: Any) -> None:
    api: Any = sys.modules["shop.api"]
    api.fast = functools.wraps(package.wrapped)(lambda: None)
    api.fast.__module__ = "shop.api"
    assert public_name(api.fast) == "shop.api:fast"
    assert resolve_callable("shop.api:fast") is api.fast


@pytest.mark.parametrize("obj", [json.dumps, collections.OrderedDict, len, dict.fromkeys, int])
def test_names_lead_back(obj: Any) -> None:
    assert resolve_callable(public_name(obj)) == obj
    assert public_name(json.dumps) == "json:dumps"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("json:dump_s", "can't load 'json:dump_s': 'json' has no 'dump_s'; did you mean 'dumps'"),
        ("no_such_package:f", "importing 'no_such_package' failed"),
        ("json:f.<locals>.g", "it was defined inside a function; move it to module level"),
        ("gelu", "no catalog is connected; write module:attribute"),
    ],
)
def test_names_that_lead_nowhere(name: str, message: str) -> None:
    with pytest.raises(CallableNameError) as caught:
        resolve_callable(name)
    assert message in str(caught.value)


class Holder(Config):
    function: Any = json.dumps


def test_catalog_names_are_read_and_never_written() -> None:
    connect_catalog(load={"dumps": [json.dumps], "twice": [json.dumps, json.loads]}.get)
    assert resolve_callable("dumps") is json.dumps
    with pytest.raises(CallableNameError, match="more than once: json:dumps, json:loads; write one of these"):
        resolve_callable("twice")
    assert "function: json:dumps\n" in to_text(Holder())
    assert to_json(Holder())["function"] == {"$callable": "json:dumps"}


def test_what_has_moved_is_found_by_its_old_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "mover-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mover\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kanawa_moved]\nkanawa.elsewhere.Config = kanawa.config.record:Config\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert resolve_callable("kanawa.elsewhere:Config") is Config
    assert resolve_callable("kanawa.elsewhere:Config.clone") is Config.clone
    for name in ("kanawa.elsewhere:Configuration", "kanawa.elsewhere:Other"):
        with pytest.raises(CallableNameError, match="can't load 'kanawa.elsewhere:"):
            resolve_callable(name)
