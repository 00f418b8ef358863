"""Diffusion models: the loss by its formula, what is left out of a batch, guidance, and rows on their own."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import ImageBatch, Made, Sequences
from kanawa.errors import KanawaError
from kanawa.testing.layer import LayerConformance
from kanawa_layers.diffusion.blocks import ModulatedBlock
from kanawa_layers.diffusion.conditions import LabelEmbedding, TimeEmbedding
from kanawa_layers.diffusion.ddpm import DDPM
from kanawa_layers.diffusion.denoiser import Denoiser
from kanawa_layers.diffusion.flow_matching import FlowMatching, UniformTimes
from kanawa_layers.diffusion.modulation import AdaptiveZero
from kanawa_layers.diffusion.prediction import FlowPrediction, NoisePrediction, PicturePrediction, VelocityPrediction
from kanawa_layers.diffusion.samplers.ddim import DDIM
from kanawa_layers.diffusion.samplers.dpm_solver import DPMSolver
from kanawa_layers.diffusion.samplers.euler import Euler
from kanawa_layers.models.diffusion import DiffusionModel
from kanawa_layers.recipes.dit import dit

SHAPE = (4, 4, 2)
LABELS = 5


class Plain(Denoiser):
    """A network whose output shows all that it was asked with."""

    class Config(Denoiser.Config):
        pass

    @classmethod
    def made_by(cls, cfg):
        return Made(SHAPE, is_latent=True)

    @kn.nowrap
    def no_wish(self, wish):
        return jnp.full_like(wish, self.config.num_labels)

    def forward(self, x, times, wish):
        return jnp.cos(x) + (times / 1000.0 + 0.1 * wish.astype(jnp.float32))[:, None, None, None]

    @kn.nowrap
    def flops_per_picture(self):
        return 0.0


def model(objective=None, sampler=None, **fields):
    cfg = DiffusionModel.Config(denoiser=Plain.Config(input_dim=1), num_classes=LABELS, **fields)
    return cfg.set(
        objective=objective or FlowMatching.Config(), sampler=sampler or DPMSolver.Config(num_steps=3)
    ).build()


def batch(rows=6):
    images = np.random.default_rng(0).standard_normal((rows, *SHAPE)).astype(np.float32)
    weights = np.ones(rows, np.float32)
    weights[-1] = 0.0
    return ImageBatch(jnp.asarray(images), jnp.arange(rows, dtype=jnp.int32) % LABELS, jnp.asarray(weights))


def small(**fields):
    sizes = {"num_layers": 2, "input_dim": 16, "num_heads": 2, "image_size": 8, "num_channels": 1, "num_classes": 3}
    return dit(**{**sizes, **fields})


def random_params(module, key=0):
    """Returns parameters of which none is zero: a new DiT's output is."""
    params = kn.initialize(module, jax.random.key(key))
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(key + 1), len(leaves))
    return tree.unflatten([x + 0.1 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)])


OBJECTIVES = {
    "noise": (DDPM.Config(), lambda x, n, a, s: n),
    "picture": (DDPM.Config(prediction=PicturePrediction.Config()), lambda x, n, a, s: x),
    "velocity": (DDPM.Config(prediction=VelocityPrediction.Config()), lambda x, n, a, s: a * n - s * x),
    "flow": (FlowMatching.Config(times=UniformTimes.Config()), lambda x, n, a, s: n - x),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_held_out_loss_is_that_of_the_formula(name):
    objective, target = OBJECTIVES[name]
    rows = batch()
    _, out = kn.functional(model(objective))({}, {}, rows, train=False)
    pictures = np.asarray(rows.images, np.float64)
    noise = np.asarray(jax.random.normal(jax.random.key(0, impl="threefry2x32"), pictures.shape), np.float64)
    quantiles = np.mod((np.arange(len(pictures)) + 0.5) * (5**0.5 - 1) / 2, 1.0)
    if name == "flow":
        times, alpha, sigma = 1000 * quantiles, 1 - quantiles, quantiles
    else:
        times = np.floor(1000 * quantiles)
        left = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))[times.astype(int)]
        alpha, sigma = np.sqrt(left), np.sqrt(1 - left)
    a, s = (number[:, None, None, None] for number in (alpha, sigma))
    said = np.cos(a * pictures + s * noise) + (times / 1000 + 0.1 * np.asarray(rows.target_ids))[:, None, None, None]
    squares = ((said - target(pictures, noise, a, s)) ** 2).mean((1, 2, 3))
    loss = out.losses["mean_squares"]
    np.testing.assert_allclose(float(loss.total), squares[:-1].sum(), rtol=1e-4)
    assert float(loss.weight) == len(pictures) - 1


def test_training_draws_times_noise_and_what_is_left_out_by_the_key():
    module = model(wish_dropout=0.5)

    def loss(key, module=module):
        return float(kn.functional(module)({}, {}, batch(), key=jax.random.key(key), train=True)[1].total_loss())

    assert loss(1) == loss(1)
    assert loss(1) != loss(2)
    assert loss(1) != loss(1, model(wish_dropout=0.0))


class Recording(Plain):
    """Adds 1 to the loss for each row without a wish."""

    class Config(Plain.Config):
        pass

    def forward(self, x, times, wish):
        self.record("left_out", kn.Sum(jnp.sum(wish == self.config.num_labels, dtype=jnp.float32)))
        return super().forward(x, times, wish)


@pytest.mark.parametrize(("train", "share"), [(True, 0.3), (False, 0.0)])
def test_wishes_are_left_out_in_training_alone(train, share):
    cfg = model(wish_dropout=0.3).config.clone().set(denoiser=Recording.Config(input_dim=1))
    rows = ImageBatch(jnp.zeros((2000, *SHAPE)), jnp.zeros(2000, jnp.int32), jnp.ones(2000))
    _, out = kn.functional(cfg.build())({}, {}, rows, key=jax.random.key(0), train=train)
    (found,) = (value.value() for path, value in out.metrics.items() if path.endswith("left_out"))
    assert float(found) / 2000 == pytest.approx(share, abs=0.04 if train else 0.0)


def test_guidance_goes_from_nothing_towards_the_wish():
    """One step of Euler from time 1: the picture is the noise minus the guided output."""
    module = model(sampler=Euler.Config(num_steps=1))
    make = kn.functional(module, "make_pictures")
    wanted, seeds = jnp.array([1, 3]), jnp.array([7, 8], jnp.uint32)
    plain = np.asarray(make({}, {}, wanted, seeds)[0])
    guided = np.asarray(make({}, {}, wanted, seeds, jnp.array([2.5, 2.5]))[0])
    # The network's answers differ by a tenth of the labels' difference; that of nothing is label 5.
    moved = plain - guided
    np.testing.assert_allclose(moved[0], 1.5 * 0.1 * (1 - LABELS), atol=1e-5)
    np.testing.assert_allclose(moved[1], 1.5 * 0.1 * (3 - LABELS), atol=1e-5)
    np.testing.assert_allclose(make({}, {}, wanted, seeds, jnp.ones(2))[0], plain, atol=1e-5)


@pytest.mark.parametrize("sampler", [Euler.Config(num_steps=3), DPMSolver.Config(num_steps=3)], ids=["euler", "dpm"])
def test_a_picture_depends_on_its_seed_and_label_alone(sampler):
    module = small(objective=FlowMatching.Config()).set(sampler=sampler).build()
    params = random_params(module)
    make = jax.jit(lambda labels, seeds: kn.functional(module, "make_pictures")(params, {}, labels, seeds)[0])
    together = np.asarray(make(jnp.array([0, 1, 2, 1]), jnp.array([5, 6, 7, 8], jnp.uint32)), int)
    for row, (label, seed) in enumerate([(0, 5), (1, 6), (2, 7), (1, 8)]):
        alone = np.asarray(make(jnp.array([label] * 4), jnp.array([seed] * 4, jnp.uint32)), int)
        assert np.abs(alone[2] - together[row]).max() <= 1, "the same pixels, but for the rounding of sums"
    assert np.abs(together[1] - together[3]).max() > 20
    assert together.dtype == int and together.min() >= 0 and together.max() <= 255


def test_ddim_with_eta_draws_for_each_row_by_itself():
    module = small().set(sampler=DDIM.Config(num_steps=3, eta=1.0, clip=1.0)).build()
    params = random_params(module)
    make = jax.jit(lambda seeds: kn.functional(module, "make_pictures")(params, {}, jnp.array([1, 1]), seeds)[0])
    first, second = (np.asarray(make(jnp.array(seeds, jnp.uint32)), int) for seeds in ([3, 4], [4, 3]))
    assert np.abs(first - second[::-1]).max() <= 1
    assert np.abs(first[0] - first[1]).max() > 20


def test_a_new_dit_says_nothing_whatever_it_is_asked():
    module = small().build()
    params = kn.initialize(module, jax.random.key(0))
    x = jnp.ones((2, 8, 8, 1))
    out, _ = kn.functional(module, "predict")(params, {}, x, jnp.array([0.0, 900.0]), jnp.array([0, 2]))
    assert float(jnp.abs(out).max()) == 0.0


def test_published_sizes_and_operations():
    """Table 1 and section 5 of the paper: DiT-XL/2 has 675 million parameters and takes 118.6 GMACs; B/4 5.6 GMACs."""
    for sizes, parameters, macs in (
        ({"num_layers": 28, "input_dim": 1152, "num_heads": 16}, 675e6, 118.64e9),
        ({"num_layers": 12, "input_dim": 768, "num_heads": 12, "patch_size": 4}, 130e6, 5.56e9),
    ):
        module = dit(**sizes).build()
        specs = jax.tree.leaves(kn.param_specs(module), is_leaf=lambda x: isinstance(x, kn.ParamSpec))
        assert sum(int(np.prod(spec.shape)) for spec in specs) == pytest.approx(parameters, rel=0.01)
        assert module.flops_per_row({}) / 2 == pytest.approx(macs, rel=0.01)


def test_what_does_not_fit_is_refused_with_what_does():
    with pytest.raises(KanawaError, match="Euler follows the speed .* is DDPM.Config .*; use DDIM or DPMSolver"):
        small().set(sampler=Euler.Config()).freeze()
    with pytest.raises(KanawaError, match="DDIM needs the noise schedule of a DDPM, .*; use Euler or DPMSolver"):
        small(objective=FlowMatching.Config()).set(sampler=DDIM.Config()).freeze()
    with pytest.raises(KanawaError, match="sampler has 2000 steps, and objective 1000 times"):
        small().set(sampler=DDIM.Config(num_steps=2000)).freeze()
    other = FlowMatching.Config(prediction=NoisePrediction.Config())
    with pytest.raises(KanawaError, match="with NoisePrediction.Config"):
        small(objective=other).set(sampler=Euler.Config()).freeze()
    small(objective=other.set(prediction=FlowPrediction.Config())).set(sampler=Euler.Config()).freeze()
    with pytest.raises(KanawaError, match="image_size .9. is not a multiple of patch_size .2."):
        small(image_size=9).freeze()
    with pytest.raises(KanawaError, match="class_names has 1 names for 3 labels"):
        small().set(class_names=("one",)).freeze()
    module = small().build()
    with pytest.raises(KanawaError, match="makes pictures of 3 labels, and was asked without any"):
        kn.functional(module, "make_pictures")(random_params(module), {}, None, jnp.array([0], jnp.uint32))


def test_a_label_that_there_is_not_shows():
    module = small().build()
    out, _ = kn.functional(module, "predict")(
        random_params(module), {}, jnp.ones((2, 8, 8, 1)), jnp.array([1.0, 1.0]), jnp.array([1, 9])
    )
    assert bool(jnp.isfinite(out[0]).all())
    assert bool(jnp.isnan(out[1]).all())


class TestTimeEmbedding(LayerConformance):
    unsupported = {"bfloat16": "its input is numbers of times", "scan": "its input is numbers of times"}

    def config(self):
        return TimeEmbedding.Config(output_dim=16, num_waves=8)

    def inputs(self, key):
        return (jax.random.uniform(key, (2,)) * 1000,)


class TestLabelEmbedding(LayerConformance):
    unsupported = {"bfloat16": "its input is integers", "scan": "its input is integers"}

    def config(self):
        return LabelEmbedding.Config(output_dim=16, num_labels=3)

    def inputs(self, key):
        return (jax.random.randint(key, (2,), 0, 4),)


def test_blocks_need_a_condition():
    layer = small().denoiser.stack.layer
    assert isinstance(layer, ModulatedBlock.Config)
    assert isinstance(layer.modulation, AdaptiveZero.Config)
    block = layer.clone().set(input_dim=16).build()
    with pytest.raises(KanawaError, match="is modulated by a condition, and Sequences.condition is None"):
        kn.functional(block)(random_params(block), {}, jnp.ones((1, 4, 16)), Sequences())
