"""Conformance of a checkpointer: every bit is restored, retention follows the config, a reader changes nothing."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kanawa.contracts import Checkpointer, CheckpointError, Restored
from kanawa.testing.conformance import ConfiguredConformance

_DATA = {"row": 24, "digest": "abc"}
_META = {"plugins": {"kanawa": "0.1.0"}}


class CheckpointerConformance(ConfiguredConformance):
    """Subclasses return the checkpointer's config; each test has a fresh folder."""

    def trees(self, step: int) -> dict[str, Any]:
        """Returns the arrays of a step, with leaves that tempt to be lost: bf16, scalars, NaN, minus zero, empty."""
        # 1e-40 is subnormal in fp32: a copy through arithmetic may flush it to zero.
        odd = np.array([[np.nan, -0.0, np.inf, 1e-40]], np.float32)
        params: dict[str, Any] = {
            "embed": jnp.arange(12, dtype=jnp.float32).reshape(3, 4) + step,
            "stack": {"layer[0]": {"w": jnp.full((2, 2), step, jnp.bfloat16)}, "odd": jnp.asarray(odd)},
            "nothing": jnp.zeros((0, 2), jnp.float32),
        }
        opt = {"adam/mu/embed": params["embed"] * 2, "adam/count": jnp.asarray(step, jnp.int32)}
        return {"params": params, "opt": opt, "state": {"seen": jnp.asarray([True, False])}}

    def saved(self, folder: Path, *steps: int, **policy: Any) -> Checkpointer:
        """Returns a checkpointer that has saved these steps."""
        checkpointer: Checkpointer = self.config().build(directory=folder, **policy)
        for step in steps:
            assert checkpointer.save(step, **self.trees(step), data=_DATA, meta=_META)
        checkpointer.wait()
        return checkpointer

    def restored(self, checkpointer: Checkpointer, step: int | None = None) -> Restored:
        """Returns a step, or the newest one, restored into the shapes of the trees."""
        place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), self.trees(0))
        restored = checkpointer.restore(abstract, step=step)
        assert restored is not None, "what was saved can't be restored"
        return restored

    def test_a_fresh_folder_has_nothing_to_restore(self, tmp_path: Path) -> None:
        checkpointer: Checkpointer = self.config().build(directory=tmp_path)
        assert checkpointer.steps() == []
        assert checkpointer.latest() is None
        assert checkpointer.restore({"params": {}}) is None
        checkpointer.close()

    def test_every_bit_comes_back_to_another_process(self, tmp_path: Path) -> None:
        self.saved(tmp_path, 7).close()
        reader = self.config().build(directory=tmp_path, read_only=True)
        restored = self.restored(reader)
        assert (restored.step, restored.data, dict(restored.meta)) == (7, _DATA, _META)
        for name, tree in self.trees(7).items():
            same: bool = jax.tree.structure(restored.items[name]) == jax.tree.structure(tree)  # type: ignore[operator]
            assert same, name
            for one, other in zip(jax.tree.leaves(restored.items[name]), jax.tree.leaves(tree), strict=True):
                assert one.dtype == other.dtype
                # Bytes: NaN equals nothing, and -0.0 equals 0.0.
                assert np.asarray(one).tobytes() == np.asarray(other).tobytes(), name
        reader.close()

    def test_steps_are_counted_and_found_where_they_are_said_to_lie(self, tmp_path: Path) -> None:
        checkpointer = self.saved(tmp_path, 1, 2)
        assert checkpointer.steps() == [1, 2]
        assert checkpointer.latest() == 2
        assert self.restored(checkpointer, 1).step == 1
        assert Path(checkpointer.location(2)).exists()
        checkpointer.close()

    def test_arrays_may_be_donated_once_save_returns(self, tmp_path: Path) -> None:
        checkpointer: Checkpointer = self.config().build(directory=tmp_path)
        trees = self.trees(3)
        checkpointer.save(3, **trees, data=_DATA, meta=_META)
        for leaf in jax.tree.leaves(trees):
            # What a donating step does to them: a save that still reads in the background would fail or write garbage.
            leaf.delete()
        checkpointer.wait()
        embed = self.restored(checkpointer).items["params"]["embed"]
        assert np.array_equal(embed, self.trees(3)["params"]["embed"])
        checkpointer.close()

    def test_the_newest_are_kept_and_every_nth_for_good(self, tmp_path: Path) -> None:
        checkpointer = self.saved(tmp_path, 1, 2, 3, 4, 5, keep_last_n=2, keep_every_n_steps=2)
        assert checkpointer.steps() == [2, 4, 5]
        checkpointer.close()

    def test_a_provisional_step_counts_once_it_is_committed(self, tmp_path: Path) -> None:
        events: list[tuple[str, int]] = []
        checkpointer = self.saved(tmp_path, 1, on_event=lambda kind, fields: events.append((kind, fields["step"])))
        for step, commits in ((2, True), (3, False)):
            assert checkpointer.save(step, **self.trees(step), data=_DATA, meta=_META, provisional=True)
            assert step not in checkpointer.steps(), "it isn't committed yet"
            checkpointer.commit(7)
            if commits:
                checkpointer.commit(step)
            checkpointer.wait()
        assert checkpointer.steps() == [step for kind, step in events if kind == "checkpoint_committed"] == [1, 2]
        assert self.restored(checkpointer).step == 2
        assert checkpointer.save(3, **self.trees(3), data=_DATA, meta=_META), "a dropped step can be saved again"
        checkpointer.close()
        assert checkpointer.steps() == [1, 2, 3]

    def test_going_back_keeps_later_steps_out_of_the_way(self, tmp_path: Path) -> None:
        checkpointer = self.saved(tmp_path, 1, 2, 3)
        self.restored(checkpointer, 1)
        try:
            places = checkpointer.go_back(1)
        except CheckpointError:
            assert checkpointer.steps() == [1, 2, 3], "it refused, and changed something"
            return
        assert checkpointer.steps() == [1]
        assert len(places) == 2
        assert all(Path(place).exists() for place in places)
        assert checkpointer.save(2, **self.trees(2), data=_DATA, meta=_META)
        checkpointer.wait()
        assert checkpointer.steps() == [1, 2]
        checkpointer.close()

    def test_a_committed_step_is_told_with_its_place(self, tmp_path: Path) -> None:
        events: list[tuple[str, int, str]] = []
        checkpointer = self.saved(
            tmp_path, 4, on_event=lambda kind, fields: events.append((kind, fields["step"], fields["path"]))
        )
        checkpointer.close()
        assert events == [("checkpoint_committed", 4, checkpointer.location(4))]

    def test_reading_changes_nothing(self, tmp_path: Path) -> None:
        self.saved(tmp_path, 1, 2).close()
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        reader = self.config().build(directory=tmp_path, read_only=True)
        self.restored(reader)
        reader.close()
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
