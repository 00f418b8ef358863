"""What a component raises while it is built is told with its place and its values, and no traceback."""

import kanawa as kn
import pytest
from kanawa.composition.blame import BuildError
from kanawa.errors import CompositionError


class Fragile(kn.Module):
    class Config(kn.Module.Config):
        width: int = 0
        kind: str = "plain"

    def setup(self):
        if self.config.kind == "exits":
            raise SystemExit(3)
        self.add_param("scale", (12 // self.config.width,), axes=(None,))


class Wide(kn.Module):
    class Config(kn.Module.Config):
        a: int = 0
        b: int = 0
        c: int = 0
        d: int = 0
        e: int = 0
        f: int = 0
        g: int = 0
        h: int = 0
        i: int = 0
        j: int = 0
        k: int = 0
        width: int = 1

    def setup(self):
        raise ValueError(self.config.width)


class Around(kn.Module):
    class Config(kn.Module.Config):
        parts: tuple[Fragile.Config, ...] = (Fragile.Config(width=3), Fragile.Config())

    def setup(self):
        for i, part in enumerate(self.config.parts):
            self.add_child(f"parts[{i}]", part)


class Checked(kn.Config):
    limit: float = 1.0

    def check(self):
        return [] if 1 / self.limit else ["limit"]


def failing(width: int = 4) -> None:
    message = f"no {width}"
    raise ValueError(message)


class Experiment(kn.Config):
    model: kn.Config = Around.Config()


def test_a_component_names_its_place_and_values():
    with pytest.raises(BuildError) as error:
        kn.compose(Experiment())
    text = str(error.value)
    assert "model.parts[1] can't be built: " in text
    assert ":Fragile raised ZeroDivisionError: integer division or modulo by zero" in text
    assert "its values are width=0, kind='plain'" in text
    assert "--traceback" in text
    assert error.value.exit_code == 2
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_values_that_somebody_set_come_first():
    with pytest.raises(BuildError, match="its values are width=3, a=0, "):
        kn.compose(Experiment(model=Wide.Config(width=3)))


def test_a_component_that_ends_the_program():
    with pytest.raises(BuildError, match="Fragile raised SystemExit: 3"):
        kn.compose(Experiment(model=Fragile.Config(kind="exits")))


def test_a_function():
    with pytest.raises(BuildError, match="model can't be built: .*failing raised ValueError: no 4"):
        kn.compose(Experiment(model=kn.config_for(failing)))


def test_a_check_that_fails_itself():
    with pytest.raises(CompositionError, match=r"Checked.check raised ZeroDivisionError"):
        kn.compose(Experiment(model=Checked(limit=0.0)))
