"""What the kit's classes have in common: features that an author lists as unsupported, and configs in JSON."""

from typing import Any, ClassVar

import pytest

from kanawa.config import from_json, to_json


class Conformance:
    """The base of conformance classes; `unsupported` maps a feature that a class names to the reason it is missing."""

    unsupported: ClassVar[dict[str, str]] = {}

    def skip_unless(self, feature: str) -> None:
        """Skips the test with the author's reason where the feature is listed as unsupported."""
        if feature in self.unsupported:
            pytest.skip(f"{feature}: {self.unsupported[feature]}")


class ConfiguredConformance(Conformance):
    """The same for what has a config."""

    def config(self) -> Any:
        """Returns the config under test."""
        raise AssertionError("implement config() in the conformance class")  # noqa: EM101

    def test_config_round_trips_through_json(self) -> None:
        cfg = self.config()
        assert from_json(to_json(cfg)) == cfg
