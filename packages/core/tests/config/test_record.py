"""The record: fields, inheritance, copying, paths, freezing, equality, pickling."""

import copy
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from kanawa.config import (
    FROM_PARENT,
    REQUIRED,
    Config,
    Configurable,
    FieldTypeError,
    FrozenConfigError,
    IncompleteConfigError,
    PathError,
    SchemaError,
    UnknownFieldError,
)


class Leaf(Config):
    width: int = FROM_PARENT
    scale: float = 1.0


class Branch(Config):
    leaf: Leaf = Leaf(scale=2)
    leaves_: dict[str, Leaf] = {"a": Leaf()}
    sizes: list[int] = [1, 2]
    twins: tuple[Leaf, ...] = (Leaf(), Leaf())
    steps: int = REQUIRED
    name: str


def complete() -> Branch:
    return Branch(steps=1, name="x")


def test_unknown_field_names_class_and_near_names() -> None:
    with pytest.raises(UnknownFieldError, match=r"Leaf has no field 'widht'; did you mean 'width'\?"):
        Leaf(widht=3)
    with pytest.raises(UnknownFieldError, match="did you mean 'scale'"):
        Leaf().scal = 1
    with pytest.raises(UnknownFieldError, match="did you mean 'scale'"):
        _ = Leaf().scal
    assert not hasattr(Leaf(), "scal")


def test_set_is_all_or_nothing() -> None:
    leaf = Leaf()
    with pytest.raises(FieldTypeError):
        leaf.set(width=3, scale="x")
    assert leaf.width is FROM_PARENT
    assert leaf.set(width=3) is leaf


def test_annotated_without_default_is_required() -> None:
    assert Branch().name is REQUIRED


def test_defaults_are_not_shared() -> None:
    one, two = Branch(), Branch()
    one.leaf.scale = 7
    one.sizes.append(3)
    one.leaves_["a"].scale = 7
    one.twins[0].scale = 7
    assert two == Branch()
    assert two.leaf.scale == 2.0


def test_assigned_values_are_copied_in() -> None:
    leaf, sizes = Leaf(), [1]
    branch = Branch(leaf=leaf, sizes=sizes)
    leaf.scale = 5
    sizes.append(2)
    assert branch.leaf.scale == 1.0
    assert branch.sizes == [1]


def test_clone_is_independent_and_sets() -> None:
    original = complete()
    cloned = original.clone(steps=2)
    cloned.leaf.scale = 9
    assert (original.steps, original.leaf.scale) == (1, 2.0)
    assert (cloned.steps, cloned.leaf.scale) == (2, 9.0)


def test_get_and_set_path() -> None:
    branch = complete()
    branch.set_path("twins[1].scale", 4).set_path("sizes[0]", 8).set_path("leaves_.a.width", 2)
    assert branch.get("twins[1].scale") == 4.0
    assert branch.sizes == [8, 2]
    assert branch.get('leaves_["a"].width') == 2
    branch.set_path("twins[0]", Leaf(width=1))
    assert branch.twins[0].width == 1
    branch.set_path("leaves_.b", Leaf(width=5))
    assert branch.get("leaves_.b.width") == 5
    assert branch.get("") is branch


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "leef.scale",
            "path 'leef.scale': the root (Branch) has no field 'leef'; did you mean 'leaf'",
        ),
        ("leaf.scal", "leaf (Leaf) has no field 'scal'"),
        ("twins[2].scale", "twins has 2 items; 2 is not one of their indices"),
        ("leaves_.c.scale", "leaves_ has no key 'c'"),
        ("name.x", "name is REQUIRED, which has nothing inside"),
    ],
)
def test_paths_that_lead_nowhere(path: str, message: str) -> None:
    for use in (lambda: Branch().get(path), lambda: Branch().set_path(path, 1)):
        with pytest.raises(PathError) as caught:
            use()
        assert message in str(caught.value)


def test_set_path_error_gives_the_full_path() -> None:
    with pytest.raises(FieldTypeError, match=r"twins\[0\].scale \(Leaf.scale\): expected float"):
        Branch().set_path("twins[0].scale", "x")


def test_walk() -> None:
    assert [p for p, _ in complete().walk()] == ["", "leaf", "leaves_.a", "twins[0]", "twins[1]"]


class Checked(Config):
    heads: int = 4
    width: int = 8
    inner: Leaf = Leaf()

    def check(self) -> list[str]:
        if self.width % self.heads:
            return [f"width {self.width} is not a multiple of heads {self.heads}"]
        return []


class Holder(Config):
    first: Checked = Checked()
    rest: list[Checked] = [Checked()]
    branch: Branch = Branch()


def test_freeze_reports_everything_at_once() -> None:
    holder = Holder()
    holder.rest[0].heads = 3
    with pytest.raises(IncompleteConfigError) as caught:
        holder.freeze()
    assert caught.value.problems == (
        "rest[0]: width 8 is not a multiple of heads 3",
        "branch.steps is REQUIRED and not set (Branch.steps)",
        "branch.name is REQUIRED and not set (Branch.name)",
    )
    assert "Holder has 3 problems" in str(caught.value)
    assert not holder.first.is_frozen


def test_check_waits_for_the_parent() -> None:
    cfg = Checked(width=FROM_PARENT, heads=3).freeze()
    with pytest.raises(IncompleteConfigError, match="width 8 is not a multiple of heads 3"):
        cfg.clone(width=8).freeze()


def test_a_derived_config_shares_what_is_inside_and_is_checked_itself() -> None:
    holder = Holder(first=Checked(width=FROM_PARENT, heads=3), branch=complete()).freeze()
    before = holder.first
    derived = before.derived(width=9)
    assert (derived.width, derived.is_frozen, before.width) == (9, True, FROM_PARENT)
    assert derived.inner is before.inner
    assert derived == before.clone(width=9).freeze()
    assert [origin.value for origin in derived.origin_history("width")][-1] == "9"
    with pytest.raises(IncompleteConfigError, match="width 8 is not a multiple of heads 3"):
        before.derived(width=8)
    mutable = Checked()
    assert mutable.derived(width=12).inner is not mutable.inner


def test_freeze_checks_lists_changed_in_place() -> None:
    branch = complete()
    branch.sizes.append("x")  # type: ignore[arg-type]
    with pytest.raises(IncompleteConfigError, match=r"sizes \(Branch.sizes\)\[2\]: expected int"):
        branch.freeze()


MUTATIONS: list[Callable[[Any], Any]] = [
    lambda c: setattr(c, "steps", 2),
    lambda c: c.set(steps=2),
    lambda c: c.set_path("leaf.scale", 2),
    lambda c: setattr(c.twins[0], "scale", 2),
    lambda c: setattr(c.leaves_["a"], "scale", 2),
    lambda c: c.sizes.append(1),
    lambda c: c.sizes.__setitem__(0, 1),
    lambda c: c.leaves_.update(b=Leaf()),
    lambda c: c.leaves_.pop("a"),
]


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_frozen_refuses_every_change(mutate: Callable[[Any], Any]) -> None:
    branch = complete().freeze()
    with pytest.raises(FrozenConfigError, match=r"is frozen; clone\(\) returns a mutable copy"):
        mutate(branch)
    mutate(branch.clone())
    assert branch == complete()


def test_freezing_twice_and_assigning_a_frozen_config() -> None:
    leaf = Leaf(width=1).freeze()
    assert leaf.freeze() is leaf
    branch = Branch(leaf=leaf)
    branch.leaf.width = 2
    assert leaf.width == 1


def test_equality_is_by_type_and_strict_value() -> None:
    class Loose(Config):
        value: Any = 1

    assert complete() == complete()
    assert complete() == complete().freeze()
    assert Loose(value=1) != Loose(value=1.0)
    assert Loose(value=1) != Loose(value=True)
    assert Loose(value=(1,)) != Loose(value=[1])
    assert Loose(value=float("nan")) == Loose(value=float("nan"))
    assert Leaf() != Loose()


def test_hash_needs_freezing() -> None:
    with pytest.raises(TypeError, match=r"may still change; freeze\(\) it before hashing"):
        hash(Leaf())
    assert hash(complete().freeze()) == hash(complete().freeze())
    assert len({complete().freeze(), complete().freeze(), complete().set(steps=2).freeze()}) == 2


@pytest.mark.parametrize("frozen", [False, True])
def test_pickle_and_deepcopy(frozen: bool) -> None:
    branch = complete()
    if frozen:
        branch.freeze()
    for same in (pickle.loads(pickle.dumps(branch)), copy.deepcopy(branch), copy.copy(branch)):
        assert same == branch
        assert same.is_frozen is same.leaf.is_frozen is frozen
        assert same.origin_history("steps") == branch.origin_history("steps")
        assert same.leaf is not branch.leaf


def test_inheritance_redefaults_and_adds() -> None:
    class Wide(Leaf):
        width: int = 512
        scale = 3
        bias: bool = False

    assert list(Wide.fields()) == ["width", "scale", "bias"]
    assert (Wide().width, Wide().scale, Wide().bias) == (512, 3.0, False)
    assert Leaf().scale == 1.0


def test_annotations_may_name_later_classes() -> None:
    class Early(Config):
        later: "Later | None" = None
        later_list: "list[Later]" = []

    Early()

    class Later(Config):
        x: int = 1

    with pytest.raises(FieldTypeError, match=r"Early.later: can't resolve the annotation 'Later"):
        Early(later=1)
    assert Module.Config(inner=Inner.Config(x=2)).inner.x == 2


class Module(Configurable):
    class Config(Configurable.Config):
        inner: "Inner.Config | None" = None
        own: "Mode" = "a"  # noqa: F821
        SIZE: ClassVar[int] = 3

    Mode = str


class Inner(Configurable):
    class Config(Configurable.Config):
        x: int = 1


def test_bodies_that_cannot_work() -> None:
    with pytest.raises(SchemaError, match=r"Bare.width = 3 \(int\) has no annotation: write `width: int"):

        class Bare(Config):
            width = 3

    with pytest.raises(SchemaError, match="has no annotation"):

        class Borrowed(Config):
            function = complete

    with pytest.raises(SchemaError, match=r"a field can't have the name of Config's own 'clone'"):

        class Shadow(Config):
            clone: int = 3

    with pytest.raises(SchemaError, match=r"Hides.width\(\) hides the inherited field 'width'"):

        class Hides(Leaf):
            def width(self) -> int:
                return 1

    with pytest.raises(SchemaError, match="don't start with an underscore"):

        class Private(Config):
            _x: int = 1

    with pytest.raises(SchemaError, match=r"PLACEMENT: .*Misplaced has no field 'remta'"):

        class Misplaced(Config):
            PLACEMENT = ("remta",)
            remat: bool = False

    with pytest.raises(SchemaError, match="RENAMED maps 'a' to 'b'"):

        class Renamed(Config):
            RENAMED = {"a": "b"}
            a: int = 1


def test_methods_constants_and_nested_classes_are_fine() -> None:
    class Fine(Config):
        LIMIT: ClassVar[int] = 4
        SCHEMA_VERSION = 2
        width: int = 1

        class Nested:
            pass

        @property
        def doubled(self) -> int:
            return self.width * 2

        @staticmethod
        def zero() -> int:
            return 0

    assert list(Fine.fields()) == ["width"]
    assert (Fine().doubled, Fine.zero(), Fine.LIMIT) == (2, 0, 4)


def test_a_plain_record_builds_nothing() -> None:
    with pytest.raises(Exception, match="Leaf is a plain record: there is nothing to build"):
        Leaf(width=1).build()
