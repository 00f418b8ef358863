"""TensorBoard event files beside the run: `tensorboard --logdir RUN` shows losses, evaluations, config and samples."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kanawa.config import to_text
from kanawa.contracts import Run, Service

from kanawa_runtime.services.curves import points, require


class TensorBoardLogger(Service):
    """Losses, evaluations, config and samples as TensorBoard event files in RUN/`folder`.

    A resumed run continues its curves: points beyond the step that it resumed from are marked as purged.
    """

    class Config(Service.Config):
        folder: str = "tensorboard"

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        require("tensorboardX", "tensorboard", "tensorboard")
        self._writer: Any = None

    def start(self, run: Run) -> None:
        """Opens a new event file."""
        import tensorboardX

        # Points at and after `purge_step` that earlier files hold are dropped by TensorBoard as it reads. Files are
        # named by the second: without the attempt, a run resumed within one would write over its own past.
        self._writer = tensorboardX.SummaryWriter(
            str(Path(run.directory) / self.config.folder),
            purge_step=run.start_step + 1,
            filename_suffix=f".{run.attempt:06d}",
            write_to_disk=True,
        )
        self._writer.add_text("config", _as_code(to_text(run.config)), run.start_step)

    def event(self, run: Run, event: Mapping[str, Any]) -> None:
        """Writes the event's numbers, and a sample's text."""
        step = int(event.get("step", run.start_step))
        for name, value in points(event):
            self._writer.add_scalar(name, value, step, walltime=event.get("time"))
        if event.get("event") == "sample":
            self._writer.add_text("sample", _as_code(f"{event.get('prompt', '')}{event.get('text', '')}"), step)
        # Between checkpoints minutes may pass, and what isn't flushed is lost with a kill.
        if event.get("event") in ("eval", "checkpoint_committed", "run_ended"):
            self._writer.flush()

    def stop(self, run: Run) -> None:
        """Closes the file."""
        del run
        self._writer.close()


def _as_code(text: str) -> str:
    """Returns text that TensorBoard, which reads markdown, shows as it is: indented by four spaces."""
    return "\n".join(f"    {line}" for line in text.splitlines())
