"""Every role of `kanawa.contracts` is abstract, and the error says what fills it or what to install."""

import kanawa as kn
import pytest
from kanawa import contracts
from kanawa.config import AbstractRoleError, Configurable, IncompleteConfigError
from kanawa.foreign import Form
from kanawa.plugins import PluginHost, host, set_host

#: The mesh isn't a role: it has one implementation, which is core's.
CONFIGURABLE = {c for c in vars(contracts).values() if isinstance(c, type) and issubclass(c, Configurable)}
ROLES = sorted(
    CONFIGURABLE - {contracts.DeviceMesh},
    key=lambda role: role.__name__,
)

FLAT = """
import kanawa as kn
from kanawa.contracts import Norm

class FlatNorm(Norm):
    def forward(self, x):
        return x

class HalfNorm(Norm):
    '''Still abstract: fills nothing.'''
"""
GROUPS = {"kanawa.layers": ["flat-norm = fake_norms:FlatNorm", "half-norm = fake_norms:HalfNorm", "lost = gone:Norm"]}


@pytest.fixture
def nothing_installed():
    before = host()
    set_host(PluginHost(discover=list))
    yield
    set_host(before)


def test_there_are_roles():
    assert {"Norm", "Positions", "CausalLM", "Strategy", "Workload", "Weighted"} <= {r.__name__ for r in ROLES}


@pytest.mark.parametrize("role", [*ROLES, kn.Module], ids=lambda role: role.__name__)
def test_a_role_cannot_be_built_or_called_into_being(role, nothing_installed):
    with pytest.raises(AbstractRoleError) as built:
        role.Config().build()
    with pytest.raises(AbstractRoleError) as made:
        role(role.Config())
    assert str(built.value) == str(made.value)
    assert str(built.value).startswith(f"{role.__name__} is a role, not an implementation")
    assert "nothing installed fills it: pip install kanawa-" in str(built.value)


@pytest.mark.parametrize(
    ("role", "home"),
    [
        (contracts.Norm, "kanawa-layers"),
        (contracts.Strategy, "kanawa-parallel"),
        (contracts.RematPolicy, "kanawa-parallel"),
        (contracts.DataSource, "kanawa-runtime"),
        (contracts.Workload, "kanawa-runtime"),
        (kn.Modifier, "kanawa-layers"),
    ],
)
def test_what_to_install(role, home, nothing_installed):
    with pytest.raises(AbstractRoleError, match=f"pip install {home}"):
        role.Config().build()


def test_a_role_named_with_a_field_as_a_user_writes_it(fake_distribution):
    fake_distribution("fake-norms", GROUPS, {"fake_norms": FLAT})
    with pytest.raises(AbstractRoleError) as error:
        contracts.Norm.Config(input_dim=4).build()
    text = str(error.value)
    assert "Norm is a role, not an implementation (abstract: forward); filled by layers" in text
    assert "flat-norm" in text
    assert "(fake-norms)" in text
    assert "kn.component('layers', '" in text
    assert "half-norm" not in text, "it leaves forward open itself"
    assert "lost" not in text, "it can't be imported"


def test_an_implementation_is_none_the_worse():
    class Shifted(contracts.Positions):
        """Overrides nothing: the defaults do nothing, which is an implementation."""

    module = Shifted.Config(head_dim=4, num_heads=2).build()
    assert isinstance(module, contracts.Positions)


def test_a_subclass_may_be_a_role_again():
    class Turned(contracts.Positions, abstract=True):
        """A narrower role."""

    class Quarter(Turned):
        """Fills it."""

    with pytest.raises(AbstractRoleError, match="Turned is a role"):
        Turned.Config(head_dim=4, num_heads=2).build()
    assert Quarter.Config(head_dim=4, num_heads=2).build().name == ""


def test_a_role_without_a_kind_of_component(nothing_installed):
    with pytest.raises(AbstractRoleError, match=r"Form is a role.*\(abstract: from_foreign, shape, to_foreign\)"):
        Form.Config().build()


def test_roles_left_in_a_config_are_reported_with_every_other_problem(nothing_installed):
    class Layer(kn.Module):
        class Config(kn.Module.Config):
            width: int = kn.REQUIRED
            norm: contracts.Norm.Config = contracts.Norm.Config()

    class Model(kn.Module):
        class Config(kn.Module.Config):
            layers: tuple[Layer.Config, ...] = (Layer.Config(), Layer.Config(width=3))
            positions: contracts.Positions.Config = contracts.Positions.Config()

    with pytest.raises(IncompleteConfigError) as error:
        Model.Config().freeze()
    problems = error.value.problems
    assert [p.split(" ")[0] for p in problems] == [
        "layers[0].width",
        "layers[0].norm:",
        "layers[1].norm:",
        "positions:",
    ]
    assert "Norm is a role" in problems[1]
    assert "pip install kanawa-layers" in problems[3]
    with pytest.raises(kn.KanawaError, match=r"layers\[1\].norm: Norm is a role"):
        kn.compose(Model.Config())
