"""Optimizers against plain NumPy, written from the papers in float64, one matrix at a time: 20 updates to 1e-6."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.arrays.spec import ParamSpec
from kanawa_runtime.learn.adamw import AdamW
from kanawa_runtime.learn.ademamix import AdEMAMix
from kanawa_runtime.learn.lion import Lion
from kanawa_runtime.learn.muon import Muon
from kanawa_runtime.learn.sgd import SGD
from kanawa_runtime.learn.soap import Soap
from kanawa_runtime.learn.sophia import Sophia

STEPS, RATE, DECAY = 20, 3e-3, 0.1

SPECS = {
    "square.weight": ParamSpec((6, 6), ("embed", "mlp")),
    "wide.weight": ParamSpec((5, 8), ("embed", "mlp")),
    "heads.weight": ParamSpec((6, 3, 2), ("embed", "heads", "head_dim"), fan_out_axes=(1, 2)),
    "qkv.weight": ParamSpec(
        (6, 2, 4, 3), ("embed", "kv_heads", None, "head_dim"), fan_out_axes=(1, 2, 3), parts=(2, (2, 1, 1))
    ),
    "norm.scale": ParamSpec((6,), ("embed",), weight_decay=0.0),
}


def gradients(step, path):
    # A slow part that returns, and noise: moments and bases have something to follow.
    shape, random = SPECS[path].shape, np.random.default_rng([step, len(path)])
    slow = np.random.default_rng(len(path)).standard_normal(shape)
    return (slow * np.cos(step / 5) + 0.5 * random.standard_normal(shape)).astype(np.float32)


def start(path):
    return np.random.default_rng([7, len(path)]).standard_normal(SPECS[path].shape).astype(np.float32)


def curvature(step, path):
    return np.square(np.random.default_rng([9, step, len(path)]).standard_normal(SPECS[path].shape)).astype(np.float32)


def trained(config):
    transform = config.build().transformation(SPECS, lambda count: jnp.full((), RATE, jnp.float32))
    params = {path: jnp.asarray(start(path)) for path in SPECS}

    @jax.jit
    def update(grads, state, params, known):
        extra = {"curvature": lambda: known} if config._target.uses_curvature else {}
        return transform.update(grads, state, params, **extra)

    state = transform.init(params)
    for step in range(STEPS):
        known = {path: jnp.asarray(curvature(step, path)) for path in SPECS}
        grads = {path: jnp.asarray(gradients(step, path)) for path in SPECS}
        changes, state = update(grads, state, params, known)
        params = {path: params[path] + changes[path] for path in SPECS}
    return params


def expected(path, rule):
    """Returns a parameter after the updates `rule(gradient, number)` of its matrices, with decoupled decay."""
    param, decay = start(path).astype(np.float64), DECAY * SPECS[path].weight_decay
    for step in range(STEPS):
        change = rule(gradients(step, path).astype(np.float64), step)
        param = param - RATE * (change.reshape(param.shape) + decay * param)
    return param


class Adam:
    def __init__(self, b1, b2, eps=1e-8):
        self.b1, self.b2, self.eps, self.m, self.v, self.t = b1, b2, eps, 0.0, 0.0, 0

    def __call__(self, g, step):
        self.t += 1
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g * g
        return self.m / (1 - self.b1**self.t) / (np.sqrt(self.v / (1 - self.b2**self.t)) + self.eps)


class Ademamix(Adam):
    """Algorithm 1 of arXiv:2409.03137, with both schedules of section 3.1 over `warmup` updates."""

    def __init__(self, alpha, b3, warmup):
        super().__init__(0.9, 0.999)
        self.alpha, self.b3, self.warmup, self.slow = alpha, b3, warmup, 0.0

    def __call__(self, g, step):
        fast = super().__call__(g, step)
        # Both count the updates before this one, as optax does; the paper counts this one too.
        done = min(1.0, step / self.warmup)
        # The half-life ln(0.5) / ln(b) - 1 grows in a straight line from b1's to b3's.
        start, end = (np.log(0.5) / np.log(b) - 1.0 for b in (self.b1, self.b3))
        b3 = 0.5 ** (1.0 / (start + done * (end - start) + 1.0))
        self.slow = b3 * self.slow + (1.0 - b3) * g
        return fast + done * self.alpha * self.slow / (np.sqrt(self.v / (1 - self.b2**self.t)) + self.eps)


class SoapOfMatrix:
    """Algorithm 3 of arXiv:2409.11321 with the bases of algorithm 4, as the authors' code begins and orders them."""

    def __init__(self, sides, interval):
        self.sides, self.interval = sides, interval
        self.m = self.v = 0.0
        self.statistics, self.bases = {}, {}

    def rotate(self, x, back=False):
        left, right = self.bases.get(0), self.bases.get(1)
        x = x if left is None else (left @ x if back else left.T @ x)
        return x if right is None else (x @ right.T if back else x @ right)

    def __call__(self, g, step):
        g = g.reshape(g.shape[0], -1)
        change = np.zeros_like(g)
        if step:
            # The first moment in the parameter's own basis, rotated anew each time, as the paper writes it.
            self.m = 0.95 * self.m + 0.05 * g
            self.v = 0.95 * self.v + 0.05 * self.rotate(g) ** 2
            corrected = self.rotate(self.m) / (1 - 0.95**step)
            change = self.rotate(corrected / (np.sqrt(self.v / (1 - 0.95**step)) + 1e-8), back=True)
        for side in self.sides:
            outer = g @ g.T if side == 0 else g.T @ g
            self.statistics[side] = 0.95 * self.statistics.get(side, 0.0) + 0.05 * outer
            if step == 0:
                self.bases[side] = np.linalg.eigh(self.statistics[side])[1][:, ::-1]
            elif step % self.interval == 0:
                basis = self.bases[side]
                order = np.argsort(-np.diag(basis.T @ self.statistics[side] @ basis))
                self.v = self.v[order] if side == 0 else self.v[:, order]
                self.bases[side] = np.linalg.qr(self.statistics[side] @ basis[:, order])[0]
        return change


def lion():
    state = {"m": 0.0}

    def rule(g, step):
        change = np.sign(0.9 * state["m"] + 0.1 * g)
        state["m"] = 0.99 * state["m"] + 0.01 * g
        return change

    return rule


def momentum():
    state = {"m": 0.0}

    def rule(g, step):
        state["m"] = 0.5 * state["m"] + g
        return state["m"]

    return rule


def sophia_of(path):
    state = {"m": 0.0, "h": 0.0}

    def rule(g, step):
        state["m"] = 0.96 * state["m"] + 0.04 * g
        if step % 4 == 0:
            state["h"] = 0.99 * state["h"] + 0.01 * curvature(step, path)
        return np.clip(state["m"] / np.maximum(20.0 * state["h"], 1e-12), -1.0, 1.0)

    return rule


class MuonOfMatrix:
    """Momentum with a look ahead, five Newton-Schulz steps, scale: https://kellerjordan.github.io/posts/muon/."""

    def __init__(self, scale, cuts=None):
        self.scale, self.cuts, self.momentum = scale, cuts, 0.0

    def __call__(self, g, step):
        self.momentum = 0.95 * self.momentum + g
        ahead = g + 0.95 * self.momentum
        if self.cuts is None:
            return self.orthogonal(ahead.reshape(g.shape[0], -1))
        # Query heads, key and value of each key head lie side by side in the middle.
        pieces = np.split(ahead, self.cuts, axis=2)
        whole = [self.orthogonal(piece.reshape(g.shape[0], -1)).reshape(piece.shape) for piece in pieces]
        return np.concatenate(whole, axis=2)

    def orthogonal(self, x):
        rows, columns = x.shape
        x = x / np.linalg.norm(x)
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
        return self.scale(rows, columns) * x


def moonshot(rows, columns):
    return 0.2 * np.sqrt(max(rows, columns))


def jordan(rows, columns):
    return np.sqrt(max(1.0, columns / rows))


def muon_of(scale):
    def rule_of(path):
        cuts = [2, 3] if path == "qkv.weight" else None
        return Adam(0.9, 0.95) if path == "norm.scale" else MuonOfMatrix(scale, cuts)

    return rule_of


MUON = {"newton_schulz_dtype": "float32", "weight_decay": DECAY}


def soap_of(path):
    # Of a wide matrix only the short side, as `max_side` says: the columns of one gradient have no basis but by chance.
    sides = {"norm.scale": None, "wide.weight": (0,), "qkv.weight": (0,)}.get(path, (0, 1))
    return Adam(0.95, 0.95) if sides is None else SoapOfMatrix(sides, 3)


CASES = {
    "adamw": (AdamW.Config(weight_decay=DECAY), lambda path: Adam(0.9, 0.95)),
    "ademamix": (
        AdEMAMix.Config(alpha=1.0, b3=0.99, warmup_steps=8, weight_decay=DECAY),
        lambda path: Ademamix(1.0, 0.99, 8),
    ),
    "lion": (Lion.Config(weight_decay=DECAY), lambda path: lion()),
    "sgd": (SGD.Config(momentum=0.5, weight_decay=DECAY), lambda path: momentum()),
    "muon, scaled as Moonshot's": (Muon.Config(**MUON), muon_of(moonshot)),
    "muon, scaled as Jordan's": (Muon.Config(rms=None, **MUON), muon_of(jordan)),
    "sophia": (Sophia.Config(interval=4, gamma=20.0, weight_decay=DECAY), sophia_of),
    "soap": (Soap.Config(interval=3, max_side=6, weight_decay=DECAY), soap_of),
}


@pytest.mark.parametrize("name", CASES)
def test_20_updates_equal_numpy(name):
    config, rule_of = CASES[name]
    found = trained(config)
    for path in SPECS:
        np.testing.assert_allclose(found[path], expected(path, rule_of(path)), rtol=0, atol=1e-6, err_msg=path)
