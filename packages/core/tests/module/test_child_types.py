"""Annotated children: what a class declares to editors is what `setup` must add."""

from typing import ClassVar

import kanawa as kn
import pytest
from kanawa.errors import ModuleError


class Leaf(kn.Module):
    """A child of the right class."""

    def forward(self, x: int) -> int:
        """Returns the next number."""
        return x + 1


class Narrow(Leaf):
    """A subclass, which an annotation of `Leaf` takes."""


class Other(kn.Module):
    """A child of another class."""


class Parent(kn.Module):
    """Every kind of annotation: a class, an optional one, many, a later name, and what declares no child."""

    one: Leaf
    maybe: Leaf | None
    many: tuple[Leaf, ...]
    later: "Later"
    unknown: "NobodyDefinesThis"  # noqa: F821
    width: int
    shared_by_all: ClassVar[Leaf]
    _private: Leaf

    class Config(kn.Module.Config):
        one: kn.Module.Config | None = Leaf.Config()
        maybe: kn.Module.Config | None = None
        many: tuple[kn.Module.Config, ...] = ()
        later: kn.Module.Config | None = None
        skip: str = ""

    def setup(self) -> None:
        """Adds all children but `skip`."""
        cfg = self.config
        for name in ("one", "maybe"):
            if name != cfg.skip:
                self.add_child(name, getattr(cfg, name))
        for index, each in enumerate(cfg.many):
            self.add_child(f"many[{index}]", each)
        self.add_child("later", cfg.later or Later.Config())


class Later(kn.Module):
    """Named in an annotation before it is defined."""


class Inheriting(Parent):
    """Narrows one annotation, and takes another back with a value."""

    one: Narrow
    maybe = None  # type: ignore[assignment]


class Holder(kn.Module):
    """A parent, so that the failing module has a path."""

    class Config(kn.Module.Config):
        inside: kn.Module.Config = kn.REQUIRED

    def setup(self) -> None:
        """Adds a child without annotating it, as plugins may."""
        self.add_child("inside", self.config.inside)


def test_children_are_checked_and_numbered_ones_collected() -> None:
    module = Parent.Config(maybe=Narrow.Config(), many=(Leaf.Config(), Narrow.Config())).build()
    assert module.many == (module.children["many[0]"], module.children["many[1]"])
    assert isinstance(module.maybe, Narrow)
    assert Parent.Config().build().many == ()
    assert Holder.Config(inside=Leaf.Config()).build().inside(1) == 2


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (Parent.Config(one=Other.Config()), "Parent declares `one: Leaf`, but one is of class Other"),
        (
            Parent.Config(maybe=Other.Config()),
            "Parent declares `maybe: Leaf | None`, but maybe is of class Other",
        ),
        (
            Parent.Config(one=None),
            "Parent declares `one: Leaf`, but its config is None; write `one: Leaf | None`",
        ),
        (Parent.Config(skip="one"), "but setup() added no child of that name; call self.add_child('one', …)"),
        (Parent.Config(skip="maybe"), "Parent declares `maybe: Leaf | None`, but setup() added no child"),
        (
            Parent.Config(many=(Leaf.Config(), Other.Config())),
            "declares `many: tuple[Leaf, ...]`, but many[1] is of class Other",
        ),
        (Parent.Config(later=Leaf.Config()), "Parent declares `later: Later`, but later is of class Leaf"),
        (
            Inheriting.Config(one=Leaf.Config()),
            "Inheriting declares `one: Narrow`, but one is of class Leaf",
        ),
    ],
)
def test_what_setup_leaves_out_is_named(cfg: kn.Config, message: str) -> None:
    with pytest.raises(ModuleError) as caught:
        Holder.Config(inside=cfg).build()
    assert message in str(caught.value)


def test_a_subclass_takes_an_annotation_back_with_a_value() -> None:
    assert Inheriting.Config(one=Narrow.Config(), maybe=Other.Config()).build().children["maybe"].name == "maybe"


def test_a_child_cannot_hide_a_member_of_every_module() -> None:
    class Hiding(kn.Module):
        class Config(kn.Module.Config):
            param: Leaf.Config = Leaf.Config()

        def setup(self) -> None:
            self.add_child("param", self.config.param)

    with pytest.raises(ModuleError, match="a child can't be named 'param', which is a member of every module"):
        Hiding.Config().build()


def test_a_module_shows_as_what_one_would_type() -> None:
    module = Parent.Config(many=(Leaf.Config(),)).build()
    assert repr(module) == "Parent.Config(many=(Leaf.Config(),)).build()"
    assert repr(module.one) == "Leaf.Config().build()"
