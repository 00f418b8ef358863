"""The batch that is read ahead: a signal, an error and the end of the data are told apart where it is missing."""

import os
import signal

import pytest
import tiny_lm
from kanawa.composition.experiment import compose
from kanawa.contracts import Loader
from kanawa_runtime.checkpoint.layout import committed_steps
from kanawa_runtime.data.loader import GrainLoader
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.train.batches import ReadAhead
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import Screen
from kanawa_runtime.train.stop_signals import StopSignals


class Interrupted(Loader):
    """Gives three batches; then SIGTERM comes, while the next is waited for or once there is none."""

    class Config(Loader.Config):
        has_more: bool = False

    def __iter__(self):
        """Returns itself."""
        self.left = 3
        arguments = {"global_batch": self.global_batch, "local_rows": self.local_rows, "start_row": self.start_row}
        self.batches = iter(GrainLoader.Config().build(source=self.source, **arguments))
        return self

    def __next__(self):
        """Returns a batch, as often as promised."""
        self.left -= 1
        if self.left >= 0:
            return next(self.batches)
        if self.config.has_more:
            os.kill(os.getpid(), signal.SIGTERM)
        raise StopIteration

    def close(self):
        """Ends the reading."""
        self.batches.close()
        os.kill(os.getpid(), signal.SIGTERM)


def run(path, **fields):
    cfg = tiny_lm.tiny().set(loader=Interrupted.Config(**fields))
    return Loop(compose(cfg), path, steps=5, screen=Screen()).execute()


@pytest.mark.parametrize("has_more", [False, True])
def test_a_signal_after_the_last_batch_loses_no_step(tmp_path, has_more):
    outcome = run(tmp_path, has_more=has_more)
    assert (outcome.kind, outcome.step) == ("preempted", 3)
    assert committed_steps(tmp_path / "checkpoints") == [3]
    assert outcome.saved == str(tmp_path / "checkpoints" / "3")


def test_a_step_after_which_a_signal_came_is_evaluated_only_where_that_is_due(tmp_path):
    run(tmp_path, has_more=True)
    cfg = tiny_lm.tiny()
    Loop(compose(cfg), tmp_path, steps=5, screen=Screen()).execute()
    assert [event["step"] for event in read_events(tmp_path / "events.jsonl") if event["event"] == "memory"] == [5]


def test_the_end_of_the_data_is_told_from_an_error():
    ahead = ReadAhead(iter(()), StopSignals())
    assert (ahead.batch, ahead.ended, ahead.error) == (None, True, None)
    ahead = ReadAhead((1 / zero for zero in (0,)), StopSignals())
    assert (ahead.batch, ahead.ended) == (None, False)
    with pytest.raises(ZeroDivisionError):
        ahead.check()
