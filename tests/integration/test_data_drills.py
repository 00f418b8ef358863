"""Runs that are killed again and again, on other hosts with other weights, skip no token and repeat none."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "data_exactness"))

import drill  # noqa: E402
import with_kanawa  # noqa: E402
import with_kanawa_shards  # noqa: E402

ROW = 32


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KANAWA_CACHE", str(tmp_path / "cache"))


def result(kills, **options):
    data = drill.Data.of(60 * kills, ROW)
    pipeline = with_kanawa.Kanawa(data, ROW, **options)
    return drill.run(pipeline, data, kills=kills, change_hosts=True, change_weights=True, seed=kills)


@pytest.mark.parametrize("first_fit", [False, True])
def test_packed_mixed_shuffled_data_survive_kills_exactly(first_fit):
    found = result(25, first_fit=first_fit)
    assert (found.skipped, found.repeated, found.kills) == (0, 0, 25)
    assert found.ids > 10_000


@pytest.mark.nightly
def test_a_thousand_kills_lose_nothing():
    found = result(1_000)
    assert (found.skipped, found.repeated, found.kills) == (0, 0, 1_000)


def killed_processes(kills, root, seed=0):
    data = drill.Data.of(60 * kills, ROW, seed=seed)
    pipeline = with_kanawa_shards.Shards(data, ROW, root)
    return drill.run(pipeline, data, kills=kills, change_hosts=True, change_weights=True, seed=seed)


def test_tokenised_shards_survive_killed_processes_exactly(tmp_path):
    found = killed_processes(5, tmp_path)
    assert (found.skipped, found.repeated, found.kills) == (0, 0, 5)
    assert found.ids > 2_000


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_killed_processes_lose_nothing(tmp_path, seed):
    found = killed_processes(250, tmp_path, seed)
    assert (found.skipped, found.repeated, found.kills) == (0, 0, 250)


def test_the_drill_sees_a_row_that_is_skipped_and_one_that_is_repeated():
    data = drill.Data.of(600, ROW)
    pipeline = with_kanawa.Kanawa(data, ROW)

    class Careless:
        """Forgets a step at its third attempt, and takes one again at its fifth."""

        attempts = 0

        def open(self, hosts, weights, state, draw):
            Careless.attempts += 1
            shift = {3: drill.GLOBAL_BATCH, 5: -drill.GLOBAL_BATCH}.get(Careless.attempts, 0)
            attempt = pipeline.open(hosts, drill.SHARES, None, draw)
            attempt.close()
            row = max(0, (state or (0,))[0] + shift)
            return with_kanawa._Attempt(attempt._source, hosts, row, draw)

    found = drill.run(Careless(), data, kills=6, change_hosts=True, change_weights=False)
    assert found.skipped > 300 and found.repeated > 300
