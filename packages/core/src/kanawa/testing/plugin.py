"""Conformance of a plugin distribution, as an installer sees it: requirements, entry points, roles, a light module."""

import subprocess
import sys
from typing import Any, ClassVar

import importlib_metadata
from packaging.requirements import Requirement

from kanawa.errors import PluginError, did_you_mean
from kanawa.plugins import component, host
from kanawa.plugins.discovery import PLUGIN_KIND, normalise
from kanawa.plugins.states import ComponentState
from kanawa.testing.conformance import Conformance

PREFIX = "kanawa."
#: What a plugin module must not load: the host reads it on every command line.
HEAVY = ("jax", "jaxlib", "numpy", "optax", "flax", "torch", "tensorflow")


class PluginConformance(Conformance):
    """Subclasses set the name of the installed distribution.

    `unsupported` may hold "components" (a plugin of hooks alone), with a reason.
    """

    distribution: ClassVar[str] = ""

    # --- what the kit needs ----------------------------------------------------------------------------------

    def metadata(self) -> Any:
        """Returns the installed distribution."""
        assert self.distribution, "set `distribution` in the conformance class"
        return importlib_metadata.distribution(self.distribution)

    def entry_points(self) -> list[importlib_metadata.EntryPoint]:
        """Returns the distribution's entry points in our groups."""
        return [point for point in self.metadata().entry_points if point.group.startswith(PREFIX)]

    def plugin_states(self) -> list[ComponentState]:
        """Returns what the host says of the distribution's plugin modules."""
        return [s for s in host().plugins() if s.distribution == normalise(self.distribution)]

    def component_states(self) -> list[ComponentState]:
        """Returns what the host says of the distribution's components, hooks' included."""
        return [s for s in host().components() if s.distribution == normalise(self.distribution)]

    # --- the checks ------------------------------------------------------------------------------------------

    def test_it_says_which_core_it_works_with(self) -> None:
        requires = [Requirement(text) for text in self.metadata().requires or ()]
        cores = [r for r in requires if normalise(r.name) == "kanawa"]
        assert cores, "Requires-Dist lacks kanawa: the host couldn't refuse a core that doesn't fit"
        operators = {s.operator for s in cores[0].specifier}
        assert operators & {">=", "~=", "=="}, f"{cores[0]} has no lower bound"
        assert operators & {"<", "<=", "~=", "=="}, f"{cores[0]} has no upper bound: write >=0.1,<0.4"

    def test_every_group_is_one_that_somebody_reads(self) -> None:
        groups = {point.group.removeprefix(PREFIX) for point in self.entry_points()}
        known = {*host().kinds(), PLUGIN_KIND}
        unknown = [f"{PREFIX}{g}{did_you_mean(g, known)}" for g in sorted(groups - known)]
        assert groups, f"{self.distribution} has no entry point in a kanawa group: nothing finds it"
        assert not unknown, f"groups that no package reads (declare your own with kanawa_kinds): {unknown}"

    def test_the_host_accepts_it(self) -> None:
        states = [*self.plugin_states(), *self.component_states()]
        refused = [f"{s.label} {s.name} is {s.state}: {s.reason}" for s in states if s.reason]
        assert states, f"the host knows nothing of {self.distribution}"
        assert not refused, refused

    def test_every_component_loads_and_plays_its_kinds_role(self) -> None:
        self.skip_unless("components")
        states = self.component_states()
        assert states, "no components; if the plugin has hooks alone, say so in `unsupported`"
        wrong = [problem for state in states if (problem := role_problem(state))]
        assert not wrong, "\n".join(wrong)

    def test_its_plugin_modules_are_light(self) -> None:
        for state in self.plugin_states():
            heavy = imported_by(state.value)
            assert not heavy, f"importing {state.value} loads {heavy}; import inside the hook instead"


def role_problem(state: ComponentState) -> str:
    """Returns what keeps a component from being what its kind promises; empty if nothing does."""
    try:
        component(state.kind, state.key)
    except PluginError as error:
        return str(error)
    return ""


def imported_by(value: str, then: str = "") -> list[str]:
    """Returns the heavy modules that a fresh process has loaded after importing a plugin and running `then`.

    `value` is the entry point's, "module" or "module:object"; `then` calls it `plugin`.
    """
    # In a process of its own: this one has loaded JAX long ago.
    program = (
        "import sys; from kanawa.plugins.catalog import load_value; "
        f"plugin = load_value({value!r})\n{then}\nprint(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
