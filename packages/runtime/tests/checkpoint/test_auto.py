"""The default takes what suits the place and says so; a choice that can't write there is an error, never swapped."""

import pytest
from kanawa.composition.experiment import compose
from kanawa.config import from_json, to_json
from kanawa.errors import UsageError
from kanawa_runtime.checkpoint import AutoCheckpointer, OrbaxCheckpointer, ShardedCheckpointer
from kanawa_runtime.checkpoint.tiers import Tier
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import LineScreen
from tiny_lm import tiny


@pytest.mark.parametrize(("place", "kind"), [("folder", OrbaxCheckpointer), ("address", ShardedCheckpointer)])
def test_auto_suits_the_place_and_hands_on_its_fields(tmp_path, place, kind):
    directory = tmp_path if place == "folder" else f"file://{tmp_path}"
    asked = AutoCheckpointer.Config(timeout_seconds=5, tiers=(Tier(place=f"file://{tmp_path}/quick", every_steps=3),))
    chosen = from_json(to_json(asked)).build(directory=directory)
    assert type(chosen) is kind
    assert chosen.config.timeout_seconds == 5
    assert [tier.every_steps for tier in chosen.config.tiers] == [3]
    chosen.close()


@pytest.mark.parametrize(("checkpointer", "name"), [(AutoCheckpointer, "orbax"), (ShardedCheckpointer, "sharded")])
def test_the_run_says_what_writes_its_checkpoints(tmp_path, checkpointer, name):
    lines = []
    cfg = tiny().set(checkpointer=checkpointer.Config())
    Loop(compose(cfg), tmp_path / "run", steps=2, screen=LineScreen(lines.append)).execute()
    started = [event for event in read_events(tmp_path / "run" / "events.jsonl") if event["event"] == "run_started"]
    assert [event["checkpointer"] for event in started] == [name]
    assert any(line.endswith(f"checkpoints, written by {name}") for line in lines)


def test_orbax_at_an_address_is_an_error_that_names_what_writes_there(tmp_path):
    address = f"file://{tmp_path}/checkpoints"
    with pytest.raises(UsageError, match=r"orbax writes to folders, and file:.* is an address.*checkpointer=sharded"):
        OrbaxCheckpointer.Config().build(directory=address)
    # Reading asks nothing of orbax: configs of earlier versions name it at addresses, too.
    assert OrbaxCheckpointer.Config().build(directory=address, read_only=True).steps() == []
