"""The kit passes what keeps its promises, and catches what doesn't."""

import threading

import pytest
from kanawa.arrays.optimizer_state import follows
from kanawa.contracts import Service
from kanawa.plugins.states import ComponentState
from kanawa.testing.plugin import PluginConformance, imported_by, role_problem
from kanawa.testing.service import EVENTS, ServiceConformance


class Counter(Service):
    """Counts events."""

    class Config(Service.Config):
        every: int = 1

    def start(self, run):
        self.seen = 0

    def event(self, run, event):
        self.seen += 1

    def stop(self, run):
        assert self.seen in (0, len(EVENTS))


class Leaky(Counter):
    """Starts a thread and forgets it."""

    def start(self, run):
        super().start(run)
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.done.wait)
        self.thread.start()


class TestService(ServiceConformance):
    def config(self):
        return Counter.Config()


def test_a_service_that_leaves_a_thread_is_caught(tmp_path):
    built = []

    class Kit(ServiceConformance):
        def config(self):
            class Config(Leaky.Config):
                def build(self, **runtime):
                    built.append(Leaky(Leaky.Config()))
                    return built[-1]

            return Config()

    kit = Kit()
    with pytest.raises(AssertionError, match="threads still run"):
        kit.test_it_sees_a_run_from_start_to_end_and_leaves_no_thread(kit.run_of(tmp_path))
    built[0].done.set()
    built[0].thread.join()


class TestCore(PluginConformance):
    """Core's own kernels come through entry points like anybody's."""

    distribution = "kanawa"

    test_it_says_which_core_it_works_with = None


def test_a_component_of_the_wrong_kind_is_named():
    state = ComponentState(
        name="attention.any.reference",
        kind="kernels",
        value="kanawa.kernels.attention.reference:ReferenceAttention",
        distribution="kanawa",
        version="0",
    )
    assert role_problem(state) == ""


def test_heavy_imports_are_found():
    assert imported_by("json") == []
    assert "numpy" in imported_by("numpy")


def test_state_that_follows_its_parameter():
    assert follows((4, 1, 16), (4, 8, 16))
    assert not follows((4, 16), (4, 8, 16))
    # A matrix of one side, as SOAP has.
    assert follows((8, 8), (8, 16))
