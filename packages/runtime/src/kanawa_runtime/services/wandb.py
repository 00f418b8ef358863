"""Weights & Biases: the run's losses, evaluations, config and samples, on their server or offline."""

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from kanawa.config import NonNegative, to_json
from kanawa.contracts import Run, Service
from kanawa.guarded_read import guarded_json

from kanawa_runtime.services.curves import points, require
from kanawa_runtime.storage.durable import write_durable

#: Beside the run: which of their runs it is, so that a resumed one continues it.
IDENTITY = "wandb.json"


class WandbLogger(Service):
    """Losses, evaluations, config and samples to Weights & Biases, online or offline.

    RUN/wandb.json names their run, made at the first attempt, so a resumed one continues the same curves. `mode`
    "offline" needs neither account nor network: `wandb sync RUN/wandb/offline-run-*` uploads it later. `stop_seconds`
    is how long an end waits for uploads.
    """

    class Config(Service.Config):
        project: str = "kanawa"
        entity: str | None = None
        #: None is the folder's name.
        name: str | None = None
        mode: Literal["online", "offline"] = "online"
        stop_seconds: NonNegative = 60.0

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        require("wandb", "wandb", "wandb")
        self._run: Any = None

    def start(self, run: Run) -> None:
        """Opens their run, or resumes it."""
        import wandb

        cfg, folder = self.config, Path(run.directory)
        self._run = wandb.init(
            project=cfg.project,
            entity=cfg.entity,
            name=cfg.name or folder.name,
            id=_identity(folder),
            resume="allow",
            mode=cfg.mode,
            dir=str(folder),
            config=to_json(run.config),
            # Their console capture replaces stdout and stderr, which belong to the progress bar.
            settings=wandb.Settings(console="off", silent=True),
        )
        # Their own step only ever grows: after a resume they would drop what is logged anew. Ours is an axis instead.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def event(self, run: Run, event: Mapping[str, Any]) -> None:
        """Logs the event's numbers, and a sample's text."""
        record: dict[str, Any] = dict(points(event))
        if event.get("event") == "sample":
            record["sample"] = f"{event.get('prompt', '')}{event.get('text', '')}"
        if event.get("event") == "run_ended":
            self._run.summary["outcome"] = str(event.get("outcome"))
        if record:
            self._run.log({"step": int(event.get("step", run.start_step)), **record})

    def stop(self, run: Run) -> None:
        """Ends their run; waits for uploads."""
        del run
        self._run.finish()


def _identity(folder: Path) -> str:
    """Returns the id stored with the run; makes one at the first attempt."""
    file = folder / IDENTITY
    if not file.exists():
        write_durable(file, json.dumps({"id": secrets.token_hex(4)}).encode())
    return str(guarded_json(file, folder, most=1 << 16)["id"])
