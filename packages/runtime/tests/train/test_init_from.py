"""Starting from another run by an explicit mapping: nothing is silently left there or made anew here."""

import jax
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.composition.experiment import compose
from kanawa.errors import UsageError
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.runs.open_run import open_run
from kanawa_runtime.train.init_from import InitFrom, matched
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import Screen
from tiny_lm import tiny

STORED = {"table": np.zeros((4, 2)), "old.up": np.zeros((2, 3)), "head": np.zeros((2, 4))}
WANTED = {"table": np.zeros((4, 2)), "new.up": np.zeros((2, 3)), "adapter": np.zeros((1, 2))}


def test_the_account_names_everything():
    cfg = InitFrom(renames={"new": "old"}, fresh=("adapter",), unused=("he*",))
    account = matched(cfg, STORED, WANTED, "there")
    assert account.taken == {"table": "table", "new.up": "old.up"}
    assert (account.fresh, account.left) == (("adapter",), ("head",))
    assert account.lines() == ["2 parameters were taken", "begun anew: adapter", "left behind: head"]


def test_all_that_does_not_fit_is_one_error():
    cfg = InitFrom(renames={"nw": "old"}, fresh=("adaptor",))
    with pytest.raises(UsageError) as caught:
        matched(cfg, STORED | {"table": np.zeros((5, 2))}, WANTED, "there")
    for part in (
        "init_from: the model in there doesn't fit, and nothing was started",
        "table: table has shape [5, 2] there, [4, 2] here. Name it in fresh to begin anew",
        "new.up: there has no new.up; near: old.up. Name it in renames, or in fresh",
        "adapter: there has no adapter. Name it in renames, or in fresh",
        "head of there is left over. Name it in unused, or take it by renames",
        "fresh names 'adaptor', which matches nothing",
        "renames names 'nw', and no parameter here is called so or begins so",
    ):
        assert part in str(caught.value)


def train(run, steps, **fields):
    cfg = tiny()
    if fields:
        cfg.set(init_from=InitFrom(**fields))
    return Loop(compose(cfg), run, steps=steps, screen=Screen()).execute()


def test_a_run_starts_from_a_part_of_another(tmp_path):
    train(tmp_path / "one", 3)
    before = flatten_paths(jax.device_get(open_run(tmp_path / "one").params))
    path = next(path for path in before if path != "table")
    with pytest.raises(UsageError, match=r"matches nothing"):
        train(tmp_path / "refused", 1, source=str(tmp_path / "one"), fresh=("nothing",))
    train(tmp_path / "two", 1, source=str(tmp_path / "one"), fresh=(path,), unused=(path,))
    (event,) = [e for e in read_events(tmp_path / "two" / "events.jsonl") if e["event"] == "initialised_from"]
    assert (event["fresh"], event["left"], event["path"]) == ([path], [path], str(tmp_path / "one"))
    assert event["taken"] == {name: name for name in before if name != path}
    after = flatten_paths(jax.device_get(open_run(tmp_path / "two").params))
    # One step away from what was taken, and from what was made anew.
    assert np.abs(after["table"] - before["table"]).max() < 0.05
    outcome = train(tmp_path / "two", 2, source=str(tmp_path / "one"), fresh=(path,), unused=(path,))
    assert outcome.start_step == 1
