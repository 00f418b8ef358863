"""A service: something that lives as long as a run and never changes its maths."""

from kanawa.cli.scaffold.kinds import Kind

_SERVICE = '''"""$class_name: keeps the best loss of a run in a file beside it."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kanawa.contracts import Run, Service


class $class_name(Service):
    """Sees every event that the run writes; whatever it doesn't know it leaves alone."""

    class Config(Service.Config):
        file: str = "best_loss.json"

    def start(self, run: Run) -> None:
        """Nothing has been seen yet."""
        del run
        self.best = math.inf

    def event(self, run: Run, event: Mapping[str, Any]) -> None:
        """Remembers the lowest finite loss."""
        del run
        loss = event.get("loss")
        if event.get("event") == "step" and isinstance(loss, float) and loss < self.best:
            self.best = loss

    def stop(self, run: Run) -> None:
        """Writes it down, if there was one."""
        if math.isfinite(self.best):
            Path(run.directory, self.config.file).write_text(json.dumps({"loss": self.best}))
'''

_TESTS = '''"""The plugin passes the kit that Kanawa's own packages pass."""

import json
from pathlib import Path

from kanawa.testing.plugin import PluginConformance
from kanawa.testing.service import EVENTS, ServiceConformance

from $package.service import $class_name


class TestPlugin(PluginConformance):
    distribution = "$distribution"


class Test$class_name(ServiceConformance):
    def config(self):
        return $class_name.Config()

    def test_the_best_loss_is_kept(self, run):
        service = self.config().build()
        service.start(run)
        for event in EVENTS:
            service.event(run, event)
        service.stop(run)
        assert json.loads(Path(run.directory, "best_loss.json").read_text()) == {"loss": 2.5}
'''

KIND = Kind(
    sources={"service.py": _SERVICE},
    entry_points={"services": {"$distribution": "service:$class_name"}},
    conformance=_TESTS,
    usage="kanawa train quickstart --modify service:name=$distribution --run runs/$distribution",
)
