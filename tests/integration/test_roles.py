"""With everything installed, each role of the contracts names the components that fill it, and all of them."""

import inspect

import pytest
from kanawa import contracts
from kanawa.config import AbstractRoleError, Configurable
from kanawa.plugins import component, host

# DeviceMesh is core's own and final.
ROLES = {c for c in vars(contracts).values() if isinstance(c, type) and issubclass(c, Configurable)}
ROLES -= {contracts.DeviceMesh}


@pytest.fixture(scope="module")
def components():
    """Every component that is a class, by kind and name."""
    loaded = {(s.kind, s.name): component(s.kind, s.name) for s in host().components() if s.state.usable}
    return {key: found for key, found in loaded.items() if isinstance(found, type)}


@pytest.mark.parametrize("role", sorted(ROLES, key=lambda role: role.__name__), ids=lambda role: role.__name__)
def test_the_components_that_fill_a_role_are_named(role, components):
    with pytest.raises(AbstractRoleError) as error:
        role.Config().build()
    _, _, rest = str(error.value).partition("filled by ")
    listed, _, _ = rest.partition("; use the Config")
    named = set()
    for group in filter(None, listed.split("; ")):
        kind, _, names = group.rpartition(" (")[0].partition(" ")
        named |= {(kind, name) for name in names.split(", ")}
    filling = {key for key, one in components.items() if issubclass(one, role) and not inspect.isabstract(one)}
    functions = {key for key in named if key not in components}
    assert named - functions == filling
    assert {kind for kind, _ in functions} <= ({"remat"} if role is contracts.RematPolicy else set())
    assert named or "no component in the catalog fills it" in str(error.value)
