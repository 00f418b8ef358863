"""Conformance of a modifier: it changes what it says, nothing else, and its result can be built and saved."""

from typing import ClassVar

import pytest

from kanawa.config import Config, Modifier, diff, from_json, to_json
from kanawa.module import Module


class ModifierConformance:
    """Subclasses return a modifier, a config it applies to, and the paths it may touch."""

    #: Path globs; every change must match one.
    touches: ClassVar[tuple[str, ...]] = ("**",)

    def modifier(self) -> Modifier:
        """Returns the configured modifier."""
        raise AssertionError("implement modifier() in the conformance class")  # noqa: EM101

    def config(self) -> Config:
        """Returns a config that the modifier applies to."""
        raise AssertionError("implement config() in the conformance class")  # noqa: EM101

    def test_it_changes_only_what_it_may(self) -> None:
        from kanawa.config.paths import match_path

        before = self.config()
        after = self.modifier()(before.clone())
        changes = diff(before, after)
        assert changes, "the modifier changed nothing"
        outside = [c.path for c in changes if not any(match_path(g, c.path) for g in self.touches)]
        assert not outside, f"changed outside of {self.touches}: {outside}"

    def test_it_does_the_same_again(self) -> None:
        modifier, before = self.modifier(), self.config()
        own = modifier.config.clone()
        # A modifier that keeps state, or hands out one node twice, shows in the second use.
        first, second = modifier(before.clone()), modifier(before.clone())
        assert first == second, f"the second config came out otherwise: {diff(first, second)}"
        assert modifier.config == own, "it changed its own config"

    def test_what_could_be_built_still_can(self) -> None:
        if not isinstance(self.config(), Module.Config):
            pytest.skip("its config is no module's")
        self.config().build()
        self.modifier()(self.config()).build()

    def test_the_result_round_trips(self) -> None:
        after = self.modifier()(self.config())
        assert from_json(to_json(after)) == after

    def test_its_own_config_round_trips(self) -> None:
        cfg = self.modifier().config
        assert from_json(to_json(cfg)) == cfg
