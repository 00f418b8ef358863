"""replace reaches every match, carries settings over, and refuses what doesn't fit or overlaps."""

import abc
from typing import Any

import pytest
from kanawa.config import (
    FROM_PARENT,
    REQUIRED,
    Config,
    Configurable,
    FrozenConfigError,
    Modifier,
    RewriteError,
    config_for,
    replace,
    rewriting,
)


class Norm(Configurable):
    class Config(Configurable.Config):
        eps: float = 1e-6


class LayerNorm(Norm):
    class Config(Norm.Config):
        eps: float = 1e-5


class FeedForward(Configurable, abc.ABC):
    class Config(Configurable.Config):
        input_dim: int = FROM_PARENT

    @abc.abstractmethod
    def forward(self) -> None:
        """Runs the layer."""


class Dense(FeedForward):
    class Config(FeedForward.Config):
        hidden: int = REQUIRED
        activation: str = "silu"
        mapping: tuple[str, ...] = ("up", "down")
        norm: Norm.Config = Norm.Config()

    def forward(self) -> None: ...


class MoE(FeedForward):
    class Config(FeedForward.Config):
        experts: int = REQUIRED
        hidden: int = REQUIRED
        activation: str = "gelu"
        mapping: tuple[str, ...] = ("experts",)
        dense: FeedForward.Config | None = None

    def forward(self) -> None: ...


class Odd(FeedForward):
    class Config(FeedForward.Config):
        hidden: str = "wide"

    def forward(self) -> None: ...


class Block(Config):
    ff: FeedForward.Config = Dense.Config(hidden=16)
    norm: Norm.Config = Norm.Config()


class Model(Config):
    layers: list[Block] = [Block(), Block(), Block()]
    head: FeedForward.Config = Dense.Config(hidden=8)
    strict: Dense.Config = Dense.Config(hidden=4)


def test_swaps_every_match_and_returns_paths() -> None:
    model = Model()
    paths = replace(model, target=FeedForward, new=MoE.Config(experts=4), where="layers[*].ff")
    assert paths == ["layers[0].ff", "layers[1].ff", "layers[2].ff"]
    assert all(type(block.ff) is MoE.Config for block in model.layers)
    assert type(model.head) is Dense.Config
    model.layers[0].ff.experts = 8
    assert model.layers[1].ff.experts == 4


def test_set_fields_carry_over_and_defaults_do_not() -> None:
    model = Model()
    model.head.set(input_dim=3, activation="relu")
    replace(model, target=FeedForward, new=MoE.Config(experts=4), where="head")
    head: Any = model.head
    assert (head.hidden, head.input_dim, head.activation) == (8, 3, "relu")
    # The old class's own defaults describe the old class: a mapping of its weights, for one.
    assert head.mapping == ("experts",)


def test_a_field_set_in_new_wins_even_at_its_default() -> None:
    model = Model()
    model.head.activation = "relu"
    replace(model, target=Dense, new=MoE.Config(experts=4, activation="gelu", hidden=32), where="head")
    head: Any = model.head
    assert (head.activation, head.hidden) == ("gelu", 32)


def test_a_value_changed_inside_a_field_carries_over() -> None:
    class Deeper(Dense):
        class Config(Dense.Config):
            depth: int = 2

    model = Model()
    model.head.norm.eps = 0.5
    replace(model, target=Dense, new=Deeper.Config(), where="head")
    assert model.head.norm.eps == 0.5


def test_new_may_be_made_from_the_old_node() -> None:
    model = Model()
    model.layers[1].ff.hidden = 24
    seen: list[Any] = []

    def wider(old: Any) -> Config:
        seen.append(old)
        return MoE.Config(experts=old.hidden // 8, dense=old)

    paths = replace(model, target=FeedForward, new=wider, where="layers[*].ff")
    made: Any = [block.ff for block in model.layers]
    assert paths == [f"layers[{i}].ff" for i in range(3)]
    assert [ff.experts for ff in made] == [2, 3, 2]
    assert [ff.hidden for ff in made] == [16, 24, 16], "fields left alone still carry over"
    seen[0].hidden = 99
    assert made[0].dense.hidden == 16, "the function got a copy"


def test_a_function_that_fails_changes_nothing() -> None:
    model = Model()
    model.layers[2].ff.hidden = 0

    def inverse(old: Any) -> Config:
        return MoE.Config(experts=16 // old.hidden)

    with pytest.raises(ZeroDivisionError):
        replace(model, target=FeedForward, new=inverse, where="layers[*].ff")
    assert {type(block.ff) for block in model.layers} == {Dense.Config}


def test_new_must_give_a_config() -> None:
    with pytest.raises(RewriteError, match=r"got a class; write new=Dense.Config\(…\)"):
        replace(Model(), target=FeedForward, new=Dense.Config, where="head")
    with pytest.raises(
        RewriteError, match=r"new\('head'\) returned None, expected the config .* Dense.Config; .* edit="
    ):
        replace(Model(), target=FeedForward, new=lambda old: None, where="head")


def test_carried_type_mismatch_is_reported() -> None:
    with pytest.raises(RewriteError) as caught:
        replace(Model(), target=FeedForward, new=Odd.Config(), where="head")
    assert "head.hidden can't carry over from Dense.Config to Odd.Config" in str(caught.value)
    assert "expected str, got 8 (int); set 'hidden' in the new config" in str(caught.value)


def test_slot_type_mismatch_is_reported() -> None:
    with pytest.raises(RewriteError, match=r"can't put MoE.Config at 'strict': .*expected Dense.Config"):
        replace(Model(), target=Dense, new=MoE.Config(), where="strict")


def test_no_match() -> None:
    with pytest.raises(RewriteError, match=r"no MoE under '\*\*' in Model: the config has Block, Dense"):
        replace(Model(), target=MoE, new=MoE.Config())
    with pytest.raises(RewriteError, match=r"no Norm under 'head' in Model: there are some at layers"):
        replace(Model(), target=Norm, new=LayerNorm.Config(), where="head")
    assert replace(Model(), target=MoE, new=MoE.Config(), allow_none=True) == []


def test_targets() -> None:
    model = Model()
    assert replace(model, target=Norm.Config, new=LayerNorm.Config(), where="layers[0].norm")
    assert replace(model, target=(MoE, LayerNorm), edit=lambda n: n.set(eps=1)) == ["layers[0].norm"]


def scale(by: float = 1) -> float:
    return by


class Holder(Config):
    call: Any = config_for(scale)


def test_a_configured_callable_is_a_target() -> None:
    holder = Holder()
    assert replace(holder, target=scale, edit=lambda n: n.set(by=3)) == ["call"]
    assert holder.call.build() == 3


def test_edit_returns_only_what_it_changed() -> None:
    model = Model()
    model.layers[1].norm.eps = 0.5
    changed = replace(model, target=Norm, edit=lambda n: n.set(eps=0.5), where="layers[*].norm")
    assert changed == ["layers[0].norm", "layers[2].norm"]


def test_edit_may_wrap() -> None:
    model = Model()
    paths = replace(model, target=Dense, edit=lambda n: MoE.Config(experts=2, dense=n), where="layers[*].ff")
    assert len(paths) == 3
    assert model.get("layers[2].ff.dense.hidden") == 16
    with pytest.raises(RewriteError, match="the edit of 'head' returned 3"):
        replace(model, target=Dense, edit=lambda n: 3, where="head")


def test_nested_matches_swap_the_outermost() -> None:
    model = Model(head=MoE.Config(experts=1, dense=Dense.Config(hidden=2)))
    assert replace(model, target=FeedForward, new=Dense.Config(), where="head.**") == ["head"]


def test_misuse() -> None:
    with pytest.raises(RewriteError, match="either new= or edit="):
        replace(Model(), target=Norm)
    with pytest.raises(RewriteError, match="can't swap the root"):
        replace(Norm.Config(), target=Norm, new=LayerNorm.Config())
    with pytest.raises(FrozenConfigError):
        replace(Model().freeze(), target=Norm, new=LayerNorm.Config())


class UseMoE(Modifier):
    class Config(Modifier.Config):
        experts: int = 4

    def __call__(self, cfg: Config) -> Config:
        replace(cfg, target=Dense, new=MoE.Config(experts=self.config.experts), where="layers[*].ff")
        return cfg


class UseLayerNorm(Modifier):
    class Config(Modifier.Config):
        where: str = "**"

    def __call__(self, cfg: Config) -> Config:
        replace(cfg, target=Norm, new=LayerNorm.Config(), where=self.config.where)
        return cfg.clone()


def test_modifiers_compose() -> None:
    with rewriting():
        model: Any = UseMoE.Config().build()(Model())
        model = UseLayerNorm.Config(where="layers[*].norm").build()(model)
    assert type(model.layers[1].ff) is MoE.Config
    assert type(model.layers[1].norm) is LayerNorm.Config


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        (UseMoE.Config(), UseMoE.Config(), ("UseMoE would replace", "UseMoE already")),
        (
            UseLayerNorm.Config(),
            UseLayerNorm.Config(),
            ("UseLayerNorm would", "UseLayerNorm already"),
        ),
        # Around: the layer that UseMoE swaps holds a norm that UseLayerNorm put in.
        (UseLayerNorm.Config(), UseMoE.Config(), ("'layers[0].ff'", "'layers[0].ff.norm'")),
    ],
)
def test_overlap_names_both(first: Any, second: Any, names: tuple[str, str]) -> None:
    class Target(Dense):
        pass

    with rewriting():
        model = first.build()(Model())
        if first == second == UseMoE.Config():
            for block in model.layers:
                block.set(ff=block.ff)
            second = AgainMoE.Config()
            names = ("AgainMoE would replace 'layers[0].ff'", "UseMoE already replaced")
        with pytest.raises(RewriteError) as caught:
            second.build()(model)
    for name in names:
        assert name in str(caught.value)
    assert "narrow one of them with where=" in str(caught.value)


class AgainMoE(Modifier):
    def __call__(self, cfg: Config) -> Config:
        replace(cfg, target=MoE, new=Dense.Config(), where="**")
        return cfg


def test_inside_a_replaced_node_overlaps_too() -> None:
    with rewriting():
        model = Model()
        replace(model, target=MoE, new=MoE.Config(), allow_none=True)
        replace(model, target=Dense, new=Dense.Config(), where="head")
        with pytest.raises(RewriteError, match=r"the replace at .*would replace 'head.norm', but the"):
            replace(model, target=Norm, new=LayerNorm.Config(), where="head.norm")


def test_one_modifier_may_replace_its_own_work() -> None:
    class Twice(Modifier):
        def __call__(self, cfg: Config) -> Config:
            replace(cfg, target=Dense, new=MoE.Config(experts=1), where="head")
            replace(cfg, target=MoE, new=Dense.Config(), where="head")
            return cfg

    model: Any = Twice.Config().build()(Model())
    assert type(model.head) is Dense.Config
    assert model.head.hidden == 8


def test_separate_rewritings_do_not_overlap() -> None:
    model = Model()
    for _ in range(2):
        model = UseLayerNorm.Config().build()(model)
    replace(model, target=Norm, new=LayerNorm.Config())


def test_modifier_is_abstract() -> None:
    with pytest.raises(Exception, match=r"abstract: __call__"):
        Modifier.Config().build()
