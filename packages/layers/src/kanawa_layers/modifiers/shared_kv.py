"""`shared-kv`: several layers attend over the keys and values of one, and only that one has a cache."""

from typing import Any

import kanawa as kn
from kanawa.contracts import Block, SequenceMixer, Stack
from kanawa.errors import ConfigError

from kanawa_layers.attention.key_sharing import KeySharing, OfferKeys, TakeKeys
from kanawa_layers.stack.chained import ChainedStack
from kanawa_layers.stack.pattern import PatternStack
from kanawa_layers.stack.repeated import RepeatedStack

#: The field of an attention that says whether it shares its keys.
_SLOT = "sharing"


class SharedKV(kn.Modifier):
    """`shared-kv`: one of `every` layers has keys and values, and those after it take them (CLA, arXiv:2405.12981).

    With `last`, the last so many layers of a stack take those of the layer before them (YOCO, Gemma 3n). Where layers
    repeat a pattern, a layer takes keys from one at the same place in it, since masks and positions differ.
    """

    class Config(kn.Modifier.Config):
        every: kn.Size = 2
        last: kn.Size | None = None
        where: str = "**"

        def check(self) -> list[str]:
            """Returns what is wrong with the counts."""
            return [] if self.every > 1 else [f"every is {self.every}, expected at least 2"]

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with keys shared; raises ConfigError for stacks and layers that can't."""
        problems = self.config.check()
        if problems:
            message = f"shared-kv: {'; '.join(problems)}"
            raise ConfigError(message)
        others: dict[str, str] = {}
        reached: list[Stack.Config] = []
        # The last layers of a chain are its last stack's; those before it have keys of their own.
        chains = [node.stacks for _, node in cfg.walk() if isinstance(node, ChainedStack.Config)]
        not_last = {id(stack) for stacks in chains for stack in stacks[:-1]} if self.config.last is not None else set()

        def edit(stack: Stack.Config) -> Stack.Config | None:
            if isinstance(stack, ChainedStack.Config):
                return None  # Its parts are stacks, which were handled already.
            if id(stack) in not_last:
                return None
            kind = type(stack).__qualname__
            if not isinstance(stack, (RepeatedStack.Config, PatternStack.Config)):
                others[kind] = "is neither a RepeatedStack nor a PatternStack"
                return None
            mixers = _mixers(stack)
            if not any(_SLOT in mixer.fields() for mixer in mixers):
                names = sorted({type(mixer).__qualname__ for mixer in mixers}) or ["no mixer of sequences"]
                others[kind] = f"has {', '.join(names)}, without keys to share"
                return None
            replaced = self._every(stack) if self.config.last is None else self._last(stack)
            if isinstance(replaced, str):
                others[f"{kind} of {stack.num_layers} layers"] = replaced
                return None
            reached.append(stack)
            return replaced

        kn.replace(cfg, target=Stack, edit=edit, where=self.config.where)
        if not reached:
            reasons = "; ".join(f"{kind} {reason}" for kind, reason in sorted(others.items()))
            message = f"shared-kv: nothing under {self.config.where!r} can share keys and values: {reasons}"
            raise ConfigError(message)
        return cfg

    def _every(self, stack: Any) -> PatternStack.Config | str:
        """Returns the stack in which one of every so many layers has keys, or why it can't be made."""
        pattern, count = _pattern(stack), self.config.every
        if stack.num_layers < count * len(pattern):
            return f"has too few for every={count}: it needs {count} of each of the {len(pattern)} kinds that repeat"
        takers = tuple(_sharing(block, place, TakeKeys.Config) for place, block in enumerate(pattern)) * (count - 1)
        givers = tuple(_sharing(block, place, OfferKeys.Config) for place, block in enumerate(pattern))
        # Layers that offer come first: keys must be offered before they are taken.
        return _like(stack, givers + takers, stack.num_layers)

    def _last(self, stack: Any) -> ChainedStack.Config | str:
        """Returns the chain whose last layers take keys, or why it can't be made."""
        pattern, last = _pattern(stack), self.config.last
        first = stack.num_layers - last - len(pattern)
        if first < 0:
            return f"has too few for last={last}: {len(pattern)}, one of each kind that repeats, need keys of their own"
        places = [(place % len(pattern), pattern[place % len(pattern)]) for place in range(stack.num_layers)]
        runs = (
            (0, first, None),
            (first, len(pattern), OfferKeys.Config),
            (first + len(pattern), last, TakeKeys.Config),
        )
        stacks = []
        for start, count, kind in runs:
            if count:
                blocks = tuple(_sharing(block, place, kind) for place, block in places[start : start + len(pattern)])
                stacks.append(_like(stack, blocks[:count], count))
            start += count
        return ChainedStack.Config(stacks=tuple(stacks), input_dim=stack.input_dim)


def _pattern(stack: Any) -> tuple[Block.Config, ...]:
    return stack.pattern if isinstance(stack, PatternStack.Config) else (stack.layer,)


def _mixers(stack: Any) -> list[kn.Config]:
    return [
        node
        for block in _pattern(stack)
        for _, node in block.walk()
        if node._target is not None and issubclass(node._target, SequenceMixer)
    ]


def _sharing(block: Block.Config, place: int, kind: type[KeySharing.Config] | None) -> Block.Config:
    """Returns a copy of the block whose attention offers or takes the keys of its place in the pattern."""
    copy = block.clone()
    for path, node in copy.walk():
        if kind is None or node._target is None or not issubclass(node._target, SequenceMixer):
            continue
        if _SLOT in node.fields():
            node.set(**{_SLOT: kind(name=f"keys of {path} {place}")})
            # A fused weight makes all three; a layer that takes keys needs only queries.
            if kind is TakeKeys.Config and "qkv" in node.fields():
                node.set(qkv=None)
    return copy


def _like(stack: Any, blocks: tuple[Block.Config, ...], num_layers: int) -> PatternStack.Config:
    """Returns a stack of these blocks, run as `stack` is, whose layers have the foreign names they had."""
    new = PatternStack.Config(num_layers=num_layers, pattern=blocks, input_dim=stack.input_dim)
    # Only fields that were set: the others follow the defaults, and the text stays short.
    for name in ("scan", "remat"):
        if stack.is_set(name):
            new.set(**{name: getattr(stack, name)})
    names = stack.foreign.children
    label = names.get("pattern", names.get("layer"))
    return new if label is None else new.set(foreign=kn.foreign.Names(children={"pattern": label}))
