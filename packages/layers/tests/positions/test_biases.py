"""ALiBi and T5's buckets equal `transformers`; absolute positions are what they are called."""

import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.errors import ModuleError
from kanawa_layers.positions.absolute import LearnedPositions, SinusoidalPositions
from kanawa_layers.positions.biases import Alibi, RelativeBias, SharedRelativeBias, alibi_slopes, relative_bucket

POSITIONS = jnp.arange(5)[None]


def test_alibi_slopes_of_any_number_of_heads():
    np.testing.assert_allclose(alibi_slopes(6), [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125])
    np.testing.assert_allclose(alibi_slopes(8), 2.0 ** -np.arange(1.0, 9.0))


def test_alibi_falls_linearly_with_distance():
    bias = kn.functional(Alibi.Config().build(name="a"), "bias")({}, {}, POSITIONS, POSITIONS, 2)[0]
    assert bias.shape == (1, 2, 5, 5)
    np.testing.assert_allclose(bias[0, 0, 4], -(2.0**-4) * np.array([4, 3, 2, 1, 0]))


def test_relative_buckets():
    relative = jnp.arange(-140, 141, 7)
    both = [15] * 8 + [14] * 3 + [13] * 3 + [12] * 2 + [11, 10, 9, 7, 0, 23, 25, 26, 27] + [28] * 2 + [29] * 3
    both += [30] * 3 + [31] * 8
    np.testing.assert_array_equal(relative_bucket(relative, 32, 128, bidirectional=True), both)
    past = [31] * 4 + [30] * 2 + [29] * 2 + [28] * 2 + [27, 26, 25, 24, 23, 22, 20, 18, 14, 7] + [0] * 21
    np.testing.assert_array_equal(relative_bucket(relative, 32, 128, bidirectional=False), past)


class _Sharing(kn.Module):
    """Two layers' positions that use one table."""

    class Config(kn.Module.Config):
        relative_bias: RelativeBias.Config = RelativeBias.Config(num_buckets=8)
        first: SharedRelativeBias.Config = SharedRelativeBias.Config()
        second: SharedRelativeBias.Config = SharedRelativeBias.Config()

    def setup(self) -> None:
        for name in ("relative_bias", "first", "second"):
            self.add_child(name, getattr(self.config, name), num_heads=2)
        self.share("relative_bias", self.relative_bias)

    def forward(self) -> tuple:
        return tuple(part.bias(POSITIONS, POSITIONS, 2) for part in (self.first, self.second, self.relative_bias))


def test_a_relative_bias_is_shared_by_all_layers():
    module = _Sharing.Config().build()
    weight = jnp.arange(16.0).reshape(8, 2)
    first, second, own = kn.functional(module)({"relative_bias": {"weight": weight}}, {})[0]
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, own)
    np.testing.assert_array_equal(own[0, :, 3, 3], weight[0])
    assert set(kn.param_specs(module)) == {"relative_bias"}


def test_learned_positions_are_rows_of_a_table():
    module = LearnedPositions.Config(output_dim=3, max_length=6, offset=2).build(name="positions")
    table = jnp.arange(24.0).reshape(8, 3)
    actual = kn.functional(module)({"weight": table}, {}, jnp.array([[0, 5]]))[0]
    np.testing.assert_array_equal(actual[0], table[jnp.array([2, 7])])


def test_a_row_longer_than_the_table_is_refused():
    module = LearnedPositions.Config(output_dim=3, max_length=4).build(name="positions")
    with pytest.raises(ModuleError, match="5 tokens in a row, but positions are learned up to 4"):
        kn.functional(module)({"weight": jnp.zeros((4, 3))}, {}, POSITIONS)


def test_sinusoids_alternate_and_their_products_depend_on_differences():
    module = SinusoidalPositions.Config(output_dim=6).build(name="positions")
    waves = kn.functional(module)({}, {}, POSITIONS)[0][0]
    angles = 3.0 * 10_000.0 ** -(np.arange(0, 6, 2) / 6)
    np.testing.assert_allclose(waves[3], np.stack([np.sin(angles), np.cos(angles)], -1).ravel(), atol=1e-6)
    np.testing.assert_allclose(waves[0] @ waves[2], waves[2] @ waves[4], rtol=1e-5)
