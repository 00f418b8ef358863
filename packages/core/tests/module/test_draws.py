"""Random draws: no two calls share a key by accident, and transforms change none of them."""

import jax
import jax.numpy as jnp
import kanawa as kn
import pytest
from kanawa.errors import ContextError


class Noise(kn.Module):
    class Config(kn.Module.Config):
        """None."""

    def forward(self) -> jax.Array:
        return jax.random.normal(self.next_key())


class Drawer(kn.Module):
    class Config(kn.Module.Config):
        child: Noise.Config = Noise.Config()
        layer: Noise.Config = Noise.Config()

    def setup(self) -> None:
        self.add_child("child", self.config.child)
        self.add_child("layer", self.config.layer, stacked=3)

    def own(self) -> jax.Array:
        return jax.random.normal(self.next_key())

    def of_named_calls(self) -> list[jax.Array]:
        drawn = [self.child()]
        for name in ("a", "b"):
            with kn.call_name(name):
                drawn.append(self.child())
        return drawn

    def of_own_before_in_and_after(self, wrapper: str) -> list[jax.Array]:
        def draw(_: jax.Array) -> jax.Array:
            return self.own()

        wrap = {
            "plain": lambda f: f,
            "remat": kn.remat,
            "jit": kn.jit,
            "cond": lambda f: lambda x: kn.cond(jnp.array(True), f, f, x),
            "grad": lambda f: lambda x: kn.grad(lambda z: (f(z) + z, f(z)), has_aux=True)(x)[1],
        }[wrapper]
        return [self.own(), wrap(draw)(jnp.zeros(())), self.own()]

    def of_two_scans(self) -> jax.Array:
        def body(_: None, __: None) -> tuple[None, jax.Array]:
            return None, self.own()

        return jnp.concatenate([kn.scan(body, None, length=3)[1] for _ in range(2)])

    def of_layers(self, windows: tuple[tuple[int, int], ...]) -> jax.Array:
        def body(_: None, __: None) -> tuple[None, jax.Array]:
            return None, self.layer()

        return jnp.concatenate([kn.scan(body, None, over="layer", start=s, length=n)[1] for s, n in windows])

    def of_a_child_again_in(self, wrapper: str) -> jax.Array:
        first = self.child()
        again = {
            "remat": lambda: kn.remat(self.child)(),
            "jit": lambda: kn.jit(self.child)(),
            "grad": lambda: kn.grad(lambda x: x * self.child())(first),
            "cond": lambda: kn.cond(jnp.array(True), self.child, self.child),
        }[wrapper]
        return first + again()


@pytest.fixture(scope="module")
def draw():
    module = Drawer.Config().build()
    return lambda method, *args: kn.functional(module, method)({}, {}, *args, key=jax.random.key(3))[0]


def distinct(values):
    return len({float(v) for v in jnp.stack(list(values))}) == len(values)


def test_named_calls_draw_for_themselves(draw):
    assert distinct(draw("of_named_calls"))


@pytest.mark.parametrize("wrapper", ["plain", "remat", "jit", "cond"])
def test_a_transform_neither_repeats_nor_changes_a_draw(draw, wrapper):
    drawn = draw("of_own_before_in_and_after", wrapper)
    assert distinct(drawn)
    assert drawn == draw("of_own_before_in_and_after", "plain")


def test_a_gradient_draws_once_more_and_then_goes_on(draw):
    assert distinct(draw("of_own_before_in_and_after", "grad"))


def test_two_loops_draw_apart(draw):
    assert distinct(draw("of_two_scans"))


def test_windows_of_layers_draw_as_the_whole_does(draw):
    whole = draw("of_layers", ((0, 3),))
    assert distinct(whole)
    assert jnp.array_equal(draw("of_layers", ((0, 2), (2, 1))), whole)


def test_the_layers_a_second_time_would_draw_the_same(draw):
    with pytest.raises(ContextError, match="'layer' already has a value among the random draws"):
        draw("of_layers", ((0, 3), (0, 3)))


@pytest.mark.parametrize("wrapper", ["remat", "jit", "grad", "cond"])
def test_the_same_draw_inside_a_transform_is_still_the_same(draw, wrapper):
    with pytest.raises(ContextError, match="'child' already has a value among the random draws"):
        draw("of_a_child_again_in", wrapper)
