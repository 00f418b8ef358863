"""Random latents: rows are a pure function of their number, with and without frames and pooled vectors."""

import numpy as np
import pytest
from kanawa.testing.data_source import DataSourceConformance
from kanawa_runtime.data.random_latents import RandomLatents


class TestRandomLatents(DataSourceConformance):
    def source(self):
        return RandomLatents.Config(shape=(2, 4, 4, 3), text_length=5, text_dim=6, num_rows=20).build()


def test_numbers_have_mean_0_and_variance_1_and_rows_differ():
    source = RandomLatents.Config(shape=(32, 32, 4), text_length=5, text_dim=6, pooled_dim=7).build()
    row, other = source.row(3), source.row(4)
    assert row["pooled"].shape == (7,) and abs(row["images"].mean()) < 0.05
    assert row["images"].std() == pytest.approx(1.0, abs=0.03)
    assert (row["images"] != other["images"]).mean() > 0.99
    held_out = source.held_out()
    assert held_out.num_rows == 8 and (held_out.row(3)["images"] != row["images"]).mean() > 0.99
    with pytest.raises(IndexError, match="row 8 doesn't exist"):
        held_out.row(8)
    assert np.float32(1.0) == row["loss_weights"]
