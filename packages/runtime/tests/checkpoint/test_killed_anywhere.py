"""Sequences of saves, deletions, damage and going back, killed at every point: what was committed last can be restored.

A kill is a copy of the folder as it was at a fault point: a new process finds just that.
"""

import logging
import shutil
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kanawa_runtime import faults
from kanawa_runtime.checkpoint import OrbaxCheckpointer, ShardedCheckpointer

from .checkpoint_trees import abstract

ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("save"), st.integers(1, 3)),
        st.tuples(st.just("drop"), st.just(1)),
        st.tuples(st.just("reopen"), st.just(0)),
        st.tuples(st.just("back"), st.integers(0, 1)),
        st.tuples(st.just("damage"), st.just(0)),
    ),
    min_size=3,
    max_size=7,
)


def trees(step, branch):
    return {"params": {"w": jnp.full((4,), step * 100 + branch, jnp.float32)}, "opt": {}}


class Story:
    """A run under some rules, its kills, and the steps that a process may find after each."""

    def __init__(self, folder, kind, keep, every):
        self.folder = Path(folder)
        self.kind, self.rules = kind, {"keep_last_n": keep, "keep_every_n_steps": every}
        self.run = self.folder / "run"
        self.kills = []
        self.step = self.branch = 0
        self.committed = {}
        self.under_way = None
        self.writer = self.opened(self.run)

    def opened(self, directory):
        return self.kind.Config().build(directory=directory / "checkpoints", **self.rules)

    def reached(self, point, path=None):
        """Keeps what a process killed here leaves, and what it may leave: the newest, or the one that is under way."""
        del path
        copy = self.folder / f"kill-{len(self.kills)}-{point}"
        if self.run.is_dir():
            try:
                shutil.copytree(self.run, copy)
            except shutil.Error as error:
                # Other threads write on: what went while the rest was copied is gone for a process killed then, too.
                assert all("No such file" in reason for *_, reason in error.args[0]), error
            self.kills.append((copy, dict(self.committed), self.under_way))

    def act(self, what, number):
        if what == "save":
            for _ in range(number):
                self.step += 1
                self.under_way = (self.step, self.step * 100 + self.branch)
                self.writer.save(self.step, **trees(self.step, self.branch), data={}, meta={})
                self.writer.wait()
                self.committed[self.step] = self.under_way[1]
                self.under_way = None
        elif what == "drop":
            self.writer.save(self.step + 1, **trees(self.step + 1, 99), data={}, meta={}, provisional=True)
            self.writer.wait()
        elif what == "reopen":
            self.writer.close()
            self.writer = self.opened(self.run)
        elif what == "back" and len(self.writer.steps()) > 1:
            self.branch += 1
            self.step = self.writer.steps()[-2]
            assert self.writer.restore(abstract({"params": trees(0, 0)["params"]}), step=self.step).step == self.step
            self.writer.go_back(self.step)
            self.committed = {step: value for step, value in self.committed.items() if step <= self.step}
        elif what == "damage" and len(self.writer.steps()) > 1:
            newest = self.writer.steps()[-1]
            (self.run / "checkpoints" / str(newest) / "manifest.json").write_text("{}")
            del self.committed[newest]
            restored = self.writer.restore(abstract({"params": trees(0, 0)["params"]}))
            assert restored.damaged.keys() == {newest}
            self.step = restored.step
            self.branch += 1

    def check(self, kill):
        """Asserts that a new process restores the newest step that was committed by then, bit for bit."""
        folder, committed, under_way = kill
        reader = self.opened(folder)
        restored = reader.restore(abstract({"params": trees(0, 0)["params"]}))
        allowed = {max(committed): committed[max(committed)]} if committed else {None: None}
        if under_way is not None:
            allowed[under_way[0]] = under_way[1]
        if restored is None:
            assert None in allowed, f"{folder.name}: nothing is left of {committed}"
        else:
            value = float(np.asarray(restored.items["params"]["w"])[0])
            assert (restored.step, value) in allowed.items(), (folder.name, restored.step, value, allowed)
        reader.close()


def tell(acts, keep, every, kind):
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        story = Story(folder, kind, keep, every)
        patch.setattr(faults, "reached", story.reached)
        try:
            for what, number in acts:
                story.act(what, number)
            story.writer.close()
        finally:
            patch.undo()
            logging.disable(logging.NOTSET)
        for kill in story.kills:
            story.check(kill)
        return len(story.kills)


RULES = {"acts": ACTS, "keep": st.integers(1, 3), "every": st.sampled_from([None, 2])}


@pytest.mark.parametrize("kind", [ShardedCheckpointer, OrbaxCheckpointer])
def test_a_long_story_can_be_gone_on_from_wherever_it_is_cut(kind):
    acts = [("save", 3), ("damage", 0), ("save", 1), ("drop", 1), ("back", 1), ("save", 2), ("reopen", 0), ("save", 1)]
    assert tell(acts, 2, 2, kind) > 20


@given(**RULES)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_stories_can_be_gone_on_from(acts, keep, every):
    tell(acts, keep, every, ShardedCheckpointer)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [ShardedCheckpointer, OrbaxCheckpointer])
@given(**RULES)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_stories_can_be_gone_on_from(kind, acts, keep, every):
    tell(acts, keep, every, kind)
