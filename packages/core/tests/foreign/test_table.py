"""What others call a module's parts: the table of tensors, invertible forms, and errors of what is undeclared."""

import dataclasses

import hypothesis.strategies as st
import kanawa as kn
import numpy as np
import pytest
from hypothesis import given, settings
from kanawa.arrays.spec import ParamSpec
from kanawa.arrays.tree import flatten_paths
from kanawa.config import diff, digest, from_json, replace, to_json, to_text
from kanawa.foreign import ForeignNameError, ForeignTensor, Part


class Leaf(kn.Module):
    class Config(kn.Module.Config):
        width: int = 4
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"weight": kn.foreign.Tensor(name="weight", form=kn.foreign.Matrix.Config())}
        )

    def setup(self) -> None:
        self.add_param("weight", (3, 2, self.config.width), axes=("embed", "heads", "head_dim"), fan_out_axes=(1, 2))


class Undeclared(kn.Module):
    def setup(self) -> None:
        self.add_param("weight", (2,), axes=(None,))


class Parent(kn.Module):
    class Config(kn.Module.Config):
        first: kn.Module.Config = Leaf.Config()
        second: kn.Module.Config = Leaf.Config(width=1)
        layers: int | None = 2
        foreign: kn.foreign.Names = kn.foreign.Names(children={"first": "a", "second": "layers.{}.b"})

    def setup(self) -> None:
        self.add_child("first", self.config.first)
        self.add_child("second", self.config.second, stacked=self.config.layers)


class Experts(kn.Module):
    class Config(kn.Module.Config):
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"up": kn.foreign.Tensor(name="{}.up.weight", form=kn.foreign.Matrix.Config()), "count": "count"}
        )

    def setup(self) -> None:
        self.add_param("up", (2, 3, 4), axes=("experts", "embed", "mlp"), fan_in_axes=(1,))
        self.add_state("count", (2,), axes=("experts",))
        self.add_state("seen", (), axes=())


def test_names_shapes_and_slices():
    table = kn.foreign.table_of(Parent.Config().build()).tensors
    assert {name: tensor.shape for name, tensor in table.items()} == {
        "a.weight": (8, 3),
        "layers.0.b.weight": (2, 3),
        "layers.1.b.weight": (2, 3),
    }
    (part,) = table["layers.1.b.weight"].parts
    assert (part.path, part.where, part.item) == ("second.weight", (1,), "params")


def test_an_expert_axis_becomes_part_of_the_name_and_named_state_takes_part():
    table = kn.foreign.table_of(Experts.Config().build()).tensors
    assert list(table) == ["0.up.weight", "1.up.weight", "count"]
    assert table["1.up.weight"].shape == (4, 3)
    assert table["count"].parts[0].item == "state"


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
def test_joined_children_share_a_tensor(axis, interleaved):
    cfg = Parent.Config(second=Leaf.Config(), layers=None)
    cfg.foreign.set(
        children={},
        joined=(kn.foreign.Joined(name="both", parts=("first", "second"), axis=axis, interleaved=interleaved),),
    )

    (tensor,) = kn.foreign.table_of(cfg.build()).tensors.values()
    assert tensor.name == "both.weight"
    first, second = (np.arange(24.0).reshape(3, 2, 4) + 100 * i for i in range(2))
    whole = tensor.join([first, second])
    assert whole.shape == tensor.shape == ((16, 3) if axis == 0 else (8, 6))
    step = slice(0, None, 2) if interleaved else slice(0, whole.shape[axis] // 2)
    taken = whole[step] if axis == 0 else whole[:, step]
    np.testing.assert_array_equal(taken, first.reshape(3, 8).T)
    for piece, original in zip(tensor.split(whole), (first, second), strict=True):
        np.testing.assert_array_equal(piece, original)


def test_joined_children_take_turns_by_blocks():
    cfg = Parent.Config(second=Leaf.Config(), layers=None)
    cfg.foreign.set(children={}, joined=(kn.foreign.Joined(name="both", parts=("first", "second"), blocks=4),))
    (tensor,) = kn.foreign.table_of(cfg.build()).tensors.values()
    first, second = (np.arange(24.0).reshape(3, 2, 4) + 100 * i for i in range(2))
    whole = tensor.join([first, second])
    # Each Leaf is [8, 3] here: two rows of the first, two of the second, and so on.
    np.testing.assert_array_equal(whole.reshape(4, 2, 2, 3)[:, 1], second.reshape(3, 4, 2).transpose(1, 2, 0))
    for piece, original in zip(tensor.split(whole), (first, second), strict=True):
        np.testing.assert_array_equal(piece, original)
    cfg.foreign.set(joined=(kn.foreign.Joined(name="both", parts=("first", "second"), blocks=3),))
    with pytest.raises(kn.foreign.ForeignNameError, match="has 8 rows, which don't make 3 equal blocks"):
        kn.foreign.table_of(cfg.build())


def test_one_fused_child_is_several_tensors():
    class Fused(kn.Module):
        class Config(kn.Module.Config):
            both: Leaf.Config = Leaf.Config()
            foreign: kn.foreign.Names = kn.foreign.Names(
                apart={
                    "both": (
                        kn.foreign.Sliced(name="x", axis=-1, stop=1),
                        kn.foreign.Sliced(name="y", axis=-1, start=1),
                    )
                }
            )

        def setup(self) -> None:
            self.add_child("both", self.config.both)

    table = kn.foreign.table_of(Fused.Config().build()).tensors
    assert {name: tensor.shape for name, tensor in table.items()} == {"x.weight": (2, 3), "y.weight": (6, 3)}
    whole, rebuilt = np.arange(24.0).reshape(3, 2, 4), np.zeros((3, 2, 4))
    for tensor in table.values():
        (part,) = tensor.parts
        rebuilt[part.where] = tensor.split(tensor.join([whole[part.where]]))[0]
    np.testing.assert_array_equal(rebuilt, whole)


@settings(max_examples=30, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    form=st.sampled_from(["matrix", "in_out", "flat", "permuted"]),
    data=st.data(),
)
def test_every_form_is_inverted_and_keeps_all_bits(shape, form, data):
    inputs = tuple(range(data.draw(st.integers(1, len(shape) - 1))))
    outputs = tuple(range(len(inputs), len(shape)))
    spec = ParamSpec(tuple(shape), (None,) * len(shape), fan_in_axes=inputs, fan_out_axes=outputs)
    order = data.draw(st.permutations([*range(len(shape)), -1]))
    made = {
        "matrix": kn.foreign.Matrix.Config(),
        "in_out": kn.foreign.Matrix.Config(transposed=False),
        "flat": kn.foreign.Flat.Config(),
        "permuted": kn.foreign.Permuted.Config(order=tuple(order)),
    }[form].build()
    array = np.random.default_rng(0).integers(0, 2**32, shape, dtype=np.uint32).view(np.float32)
    tensor = ForeignTensor("t", (Part("params", "p", (), spec, made),))
    foreign = tensor.join([array])
    assert foreign.shape == tensor.shape
    (back,) = tensor.split(foreign)
    assert back.tobytes() == array.tobytes()


def test_an_undeclared_parameter_says_who_and_how():
    cfg = Parent.Config(first=Undeclared.Config())
    with pytest.raises(ForeignNameError) as error:
        kn.foreign.table_of(cfg.build())
    assert "first" in str(error.value)
    assert "Undeclared" in str(error.value)
    assert 'kn.foreign.Names(tensors={"weight": "…"})' in str(error.value)


def test_an_undeclared_child_and_a_stack_without_a_number():
    with pytest.raises(ForeignNameError, match=r"child 'second'; did you mean|child 'second'"):
        kn.foreign.table_of(Parent.Config(foreign=kn.foreign.Names(children={"first": "a"})).build())
    with pytest.raises(ForeignNameError, match="lack '{}'"):
        kn.foreign.table_of(Parent.Config(foreign=kn.foreign.Names(children={"first": "a", "second": "b"})).build())


def test_names_stay_out_of_dumps_and_digests_until_changed():
    plain, renamed = Parent.Config(), Parent.Config()
    renamed.first.foreign.tensors["weight"] = "kernel"
    assert not [line for line in to_text(plain).splitlines() if "foreign" in line.partition(": ")[0]]
    assert "foreign" not in to_json(plain)["first"]
    assert "first.foreign.tensors" in to_text(renamed)
    assert from_json(to_json(renamed)) == renamed
    assert from_json(to_json(plain)) == plain
    for part in ("experiment", "placement"):
        assert digest(plain, part) == digest(renamed, part)
    assert digest(plain, "all") != digest(renamed, "all")
    assert [change.path.split(".")[1] for change in diff(plain, renamed)] == ["foreign"] * len(diff(plain, renamed))


def test_names_stay_behind_when_another_module_takes_the_place():
    cfg = Parent.Config()
    cfg.first.foreign.tensors["weight"] = "kernel"
    replace(cfg, target=Leaf, new=Experts.Config(), where="first")
    assert cfg.first.foreign == Experts.Config().foreign


def test_every_parameter_is_covered_once():
    for model in (Parent.Config().build(), Experts.Config().build()):
        covered = {path: np.zeros(s.shape, int) for path, s in flatten_paths(kn.param_specs(model)).items()}
        for tensor in kn.foreign.table_of(model).tensors.values():
            for part in tensor.parts:
                if part.item == "params":
                    covered[part.path][part.where or ...] += 1
        assert all((count == 1).all() for count in covered.values())


def test_a_tied_tensor_may_be_there_again():
    class Head(kn.Module):
        class Config(kn.Module.Config):
            foreign: kn.foreign.Names = kn.foreign.Names(repeats={"weight": "first.weight"})

    class Tied(kn.Module):
        class Config(kn.Module.Config):
            first: Leaf.Config = Leaf.Config()
            head: Head.Config = Head.Config()
            foreign: kn.foreign.Names = kn.foreign.Names(
                children={"first": "a", "head": "lm_head"}, ignored=("*.mask",)
            )

        def setup(self) -> None:
            self.add_child("first", self.config.first)
            self.add_child("head", self.config.head)
            self.share("first", self.first)

    table = kn.foreign.table_of(Tied.Config().build())
    assert table.repeats == {"lm_head.weight": "a.weight"}
    assert table.ignored == ("*.mask",)


def test_parts_that_hold_different_tensors_cannot_join():
    cfg = Parent.Config(second=Experts.Config(), layers=None)
    cfg.foreign.set(children={}, joined=(kn.foreign.Joined(name="both", parts=("first", "second")),))
    with pytest.raises(ForeignNameError, match="don't hold the same tensors: first: weight; second: "):
        kn.foreign.table_of(cfg.build())


def test_parts_are_plain_records():
    part = Part("params", "a", (1,), ParamSpec((2,), (None,)))
    assert dataclasses.replace(part, cut=(slice(0, 1),)).where == (1, slice(0, 1))
