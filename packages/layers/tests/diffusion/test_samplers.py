"""Samplers and objectives against `diffusers`: the steps that fixtures/make_diffusion.py wrote of a fixed network."""

from pathlib import Path

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa_layers.diffusion.betas import CosineBetas, LinearBetas, ScaledLinearBetas
from kanawa_layers.diffusion.ddpm import DDPM
from kanawa_layers.diffusion.flow_matching import FlowMatching, LogitNormalTimes, UniformTimes
from kanawa_layers.diffusion.objective import Evenly, Leading, Trailing
from kanawa_layers.diffusion.prediction import FlowPrediction, NoisePrediction, PicturePrediction, VelocityPrediction
from kanawa_layers.diffusion.samplers.ddim import DDIM
from kanawa_layers.diffusion.samplers.dpm_solver import DPMSolver
from kanawa_layers.diffusion.samplers.euler import Euler

FIXTURE = Path(__file__).parent.parent / "fixtures/samplers/steps.npz"
STEPS = 8
LINEAR = LinearBetas.Config()
#: Of each fixture: our objective and sampler. The schedulers' own defaults are those of LinearBetas.
CASES = {
    "ddim": (DDPM.Config(), DDIM.Config()),
    "ddim_clipped": (DDPM.Config(prediction=VelocityPrediction.Config()), DDIM.Config(clip=1.0)),
    "ddim_picture": (DDPM.Config(prediction=PicturePrediction.Config()), DDIM.Config()),
    "ddim_scaled": (DDPM.Config(betas=ScaledLinearBetas.Config()), DDIM.Config()),
    "ddim_trailing": (DDPM.Config(), DDIM.Config(spacing=Trailing.Config())),
    "dpm": (DDPM.Config(), DPMSolver.Config()),
    "dpm_cosine": (
        DDPM.Config(betas=CosineBetas.Config(), prediction=VelocityPrediction.Config()),
        DPMSolver.Config(),
    ),
    "euler": (FlowMatching.Config(), Euler.Config()),
    "euler_shifted": (FlowMatching.Config(shift=3.0), Euler.Config()),
}


@pytest.fixture(scope="module")
def saved():
    with np.load(FIXTURE) as held:
        return dict(held)


def network(x, time):
    return x * (0.2 + 0.8 * time / 1000.0) + 0.02 * jnp.sin(1.7 * x + 0.3)


class Run(kn.Module):
    """A sampler with its objective."""

    class Config(kn.Module.Config):
        objective: kn.Module.Config = kn.REQUIRED
        sampler: kn.Module.Config = kn.REQUIRED

    def setup(self):
        self.add_child("objective", self.config.objective)
        self.add_child("sampler", self.config.sampler)

    def forward(self, network, start, noise):
        return self.sampler(network, start, self.objective, noise)


def sampled(objective, sampler, start, network=network, noise=None):
    model = Run.Config(objective=objective, sampler=sampler).build()
    run = jax.jit(lambda x: kn.functional(model)({}, {}, network, x, noise)[0])
    return np.asarray(run(jnp.asarray(start)))


@pytest.mark.parametrize("name", CASES)
def test_steps_equal_those_of_diffusers(name, saved):
    objective, sampler = CASES[name]
    mine = sampled(objective, sampler.clone().set(num_steps=STEPS), saved["start"])
    np.testing.assert_allclose(mine, saved[name], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_network_sees_the_times_of_diffusers(name, saved):
    objective, sampler = CASES[name]
    path = objective.build().trajectory(STEPS, sampler.spacing.build())
    np.testing.assert_allclose(path.times, saved[f"{name}_times"], atol=1e-3)
    assert path.signal[-1] == 1.0
    assert path.level[-1] == 0.0


@pytest.mark.parametrize(
    ("name", "kind"), [("linear", LinearBetas), ("scaled", ScaledLinearBetas), ("cosine", CosineBetas)]
)
def test_schedules_equal_those_of_diffusers(name, kind, saved):
    same = {"first": 1e-4, "last": 0.02} if name == "scaled" else {}
    np.testing.assert_allclose(kind.Config(**same).build().betas(), saved[f"betas_{name}"], rtol=2e-5)


def test_noised_pictures_and_velocities_equal_those_of_diffusers(saved):
    objective = DDPM.Config(prediction=VelocityPrediction.Config()).build()
    at = objective.noising(jnp.array([321.5 / 1000]))
    picture, noise = saved["start"][:1], saved["start"][1:]
    signal, level = at.of_pictures()
    assert float(at.times[0]) == 321
    np.testing.assert_allclose(signal * picture + level * noise, saved["noised"], atol=1e-6)
    target = objective.prediction.target(picture, noise, signal, level)
    np.testing.assert_allclose(target, saved["velocity"], atol=1e-6)


@pytest.mark.parametrize("kind", [NoisePrediction, PicturePrediction, VelocityPrediction])
@pytest.mark.parametrize("share", [0.2, 0.95])
def test_picture_and_noise_come_back_from_what_is_predicted(kind, share):
    picture, noise = np.random.default_rng(0).standard_normal((2, 1, 3, 3, 1))
    signal, level = share**0.5, (1 - share) ** 0.5
    check_round_trip(kind.Config().build(), picture, noise, signal, level)


def test_both_ends_come_back_from_the_speed_of_a_flow():
    picture, noise = np.random.default_rng(0).standard_normal((2, 1, 3, 3, 1))
    check_round_trip(FlowPrediction.Config().build(), picture, noise, 0.3, 0.7)


def check_round_trip(prediction, picture, noise, signal, level):
    x = signal * picture + level * noise
    output = prediction.target(picture, noise, signal, level)
    np.testing.assert_allclose(prediction.picture(output, x, signal, level), picture, atol=1e-12)
    np.testing.assert_allclose(prediction.noise(output, x, signal, level), noise, atol=1e-12)


@pytest.mark.parametrize(
    ("objective", "sampler"),
    [
        (FlowMatching.Config(), Euler.Config(num_steps=4)),
        (FlowMatching.Config(), DPMSolver.Config(num_steps=4)),
        (DDPM.Config(prediction=PicturePrediction.Config()), DDIM.Config(num_steps=4)),
        (DDPM.Config(prediction=PicturePrediction.Config()), DPMSolver.Config(num_steps=4)),
    ],
    ids=["flow-euler", "flow-dpm", "ddpm-ddim", "ddpm-dpm"],
)
def test_a_network_that_knows_the_picture_gives_it(objective, sampler):
    picture = np.random.default_rng(1).standard_normal((2, 4, 4, 1)).astype(np.float32)
    start = np.random.default_rng(2).standard_normal(picture.shape).astype(np.float32)
    if isinstance(objective, FlowMatching.Config):

        def knows(x, time):
            return (x - picture) / jnp.maximum(time / 1000.0, 1e-6)

    else:

        def knows(x, time):
            return jnp.asarray(picture)

    np.testing.assert_allclose(sampled(objective, sampler, start, knows), picture, atol=2e-3)


def test_the_second_order_solver_beats_ddim_at_few_steps():
    # The exact way of a normal distribution of spread 0.5: what is predicted is linear in x.
    objective = DDPM.Config(prediction=PicturePrediction.Config())
    left = np.cumprod(1.0 - LINEAR.build().betas())

    def exact(x, time):
        share = jnp.asarray(left, jnp.float32)[time.astype(int)]
        return x * jnp.sqrt(share) * 0.25 / (share * 0.25 + 1.0 - share)

    start = np.random.default_rng(0).standard_normal((2, 4, 4, 1)).astype(np.float32)
    fine = sampled(objective, DDIM.Config(num_steps=1000, spacing=Evenly.Config()), start, exact)
    samplers = (DDIM.Config(num_steps=20, spacing=Evenly.Config()), DPMSolver.Config(num_steps=20))
    few = {cfg._target: sampled(objective, cfg, start, exact) for cfg in samplers}
    errors = {kind: np.abs(x - fine).max() for kind, x in few.items()}
    assert errors[DPMSolver] < 0.5 * errors[DDIM]


def test_ddim_with_eta_1_adds_the_noise_of_ddpm():
    """Of a picture that is always zero, each step's x is noise of the variance that the schedule says."""
    objective = DDPM.Config(prediction=PicturePrediction.Config())
    shape = (64, 16, 16, 1)
    draws = jax.random.normal(jax.random.key(0), (100, *shape))
    start = np.asarray(jax.random.normal(jax.random.key(1), shape))
    spread = []

    def knows(x, time):
        spread.append(jnp.std(x))
        return jnp.zeros_like(x)

    model = Run.Config(objective=objective, sampler=DDIM.Config(num_steps=100, eta=1.0)).build()
    out, _ = kn.functional(model)({}, {}, knows, jnp.asarray(start), lambda i: draws[i])
    np.testing.assert_allclose(np.asarray(out), 0.0, atol=1e-6)


def test_times_of_training_have_their_distribution():
    quantiles = (jnp.arange(10_000, dtype=jnp.float32) + 0.5) / 10_000
    even = FlowMatching.Config(times=UniformTimes.Config()).build().noising(quantiles)
    np.testing.assert_allclose(even.level, quantiles, atol=1e-6)
    np.testing.assert_allclose(even.times, 1000 * quantiles, rtol=1e-5)
    normal = FlowMatching.Config(times=LogitNormalTimes.Config(mean=0.5, stddev=1.2)).build().noising(quantiles)
    logits = np.log(np.asarray(normal.level) / np.asarray(normal.signal))
    assert abs(logits.mean() - 0.5) < 0.01
    assert abs(logits.std() - 1.2) < 0.01
    whole = DDPM.Config().build().noising(quantiles)
    assert np.bincount(np.asarray(whole.times, int), minlength=1000).tolist() == [10] * 1000


def test_a_shift_moves_times_towards_noise():
    at = FlowMatching.Config(times=UniformTimes.Config(), shift=3.0).build().noising(jnp.array([0.5]))
    np.testing.assert_allclose(at.level, [0.75], atol=1e-6)


def test_leading_places_end_at_the_first_time():
    assert Leading.Config().build().places(4, 10).tolist() == [6.0, 4.0, 2.0, 0.0]
