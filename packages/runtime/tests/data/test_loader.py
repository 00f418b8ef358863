"""The loader: the same global rows for any number of hosts, threads and restarts."""

import itertools
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa.contracts.batch import Batch
from kanawa.contracts.data import DataSource
from kanawa_runtime.data.errors import LoaderError, RowError
from kanawa_runtime.data.loader import GrainLoader
from kanawa_runtime.data.random_tokens import RandomTokens


def source(num_rows: int | None = None) -> RandomTokens:
    return RandomTokens.Config(sequence_length=6, vocab_size=1000, num_rows=num_rows).build()


def load(data: DataSource, global_batch: int, threads: int = 2, **arguments: object) -> GrainLoader:
    return GrainLoader.Config(num_threads=threads).build(source=data, global_batch=global_batch, **arguments)


def first_inputs(batches: Iterable[Batch]) -> list[list[int]]:
    return [row for batch in batches for row in batch.input_ids.tolist()]


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_in_order_whatever_the_threads(threads: int) -> None:
    batches = list(itertools.islice(load(source(), 4, threads), 6))
    assert isinstance(batches[0], Batch)
    assert batches[0].input_ids.shape == (4, 6)
    assert batches[0].loss_weights.dtype == np.float32
    assert first_inputs(batches) == [source().row(i)["input_ids"].tolist() for i in range(24)]


@settings(deadline=None, max_examples=30)
@given(st.sampled_from([1, 2, 3, 6]), st.integers(0, 40), st.integers(1, 30))
def test_hosts_together_hold_the_global_batch(hosts: int, start: int, num_rows: int) -> None:
    data = source(num_rows)
    whole = load(data, 6, start_row=start)
    parts = [
        load(data, 6, start_row=start, local_rows=range(6 * h // hosts, 6 * (h + 1) // hosts)) for h in range(hosts)
    ]
    assert {part.num_steps for part in parts} == {whole.num_steps}
    for step in range(whole.num_steps or 0):
        joined = np.concatenate([part.batch(step).target_ids for part in parts])
        assert (joined == whole.batch(step).target_ids).all()


def test_resuming_is_a_row_number() -> None:
    straight = first_inputs(itertools.islice(load(source(), 4), 10))
    resumed = first_inputs(itertools.islice(load(source(), 4, start_row=12), 7))
    assert straight[12:] == resumed
    # Also with another batch size from there on.
    assert first_inputs(itertools.islice(load(source(), 2, start_row=12), 14)) == resumed


def test_the_tail_is_padded_with_rows_of_no_weight() -> None:
    batches = list(load(source(7), 4))
    assert [batch.input_ids.shape for batch in batches] == [(4, 6), (4, 6)]
    assert first_inputs(batches)[:7] == [source().row(i)["input_ids"].tolist() for i in range(7)]
    assert batches[1].loss_weights[3].sum() == 0
    assert sum(float(batch.loss_weights.sum()) for batch in batches) == 7 * 6
    assert list(load(source(7), 4, start_row=7)) == []


def test_an_error_in_a_row_reaches_the_caller() -> None:
    class Broken(RandomTokens):
        def row(self, index: int) -> dict[str, np.ndarray]:
            if index == 5:
                message = "disk gone"
                raise OSError(message)
            return super().row(index)

    broken = Broken.Config(sequence_length=6).build()
    batches = iter(load(broken, 2))
    next(batches), next(batches)
    with pytest.raises(OSError, match="disk gone"):
        next(batches)


def test_rows_are_checked() -> None:
    class Doubles(RandomTokens):
        def row(self, index: int) -> dict[str, np.ndarray]:
            return {**super().row(index), "loss_weights": np.ones(6)}

    with pytest.raises(LoaderError, match=r"row\(0\)\['loss_weights'\] is float64 \[6\]; expected float32 \[6\]"):
        load(Doubles.Config(sequence_length=6).build(), 2).batch(0)


def test_impossible_slices() -> None:
    with pytest.raises(RowError, match=r"local_rows=\(4,\) must be some of the 4 rows"):
        load(source(), 4, local_rows=[4])
