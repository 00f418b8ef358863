"""A stack whose layers repeat a pattern of different blocks, such as local, local, global attention."""

from collections.abc import Callable
from typing import Any

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Block, RematPolicy, Sequences, Stack
from kanawa.module import unstack


class PatternStack(Stack):
    """`num_layers` layers, layer i a copy of block `pattern[i % len(pattern)]`.

    Each block of the pattern is one child with stacked `[its layers, …]` parameters, whether the tower is scanned
    or written out. A scan loops over whole repeats; the layers left over are written out after it. Layer l of
    `pattern[j]` is number l * len(pattern) + j of the tower. `remat` applies to each layer; decoding writes layers out.
    """

    pattern: tuple[Block, ...]
    remat: RematPolicy | None

    class Config(Stack.Config):
        PLACEMENT = ("scan", "remat")

        pattern: tuple[Block.Config, ...] = kn.REQUIRED
        scan: bool = True
        remat: RematPolicy.Config | None = None
        foreign: kn.foreign.Names = kn.foreign.Names(children={"pattern": "layers.{}"})

        def check(self) -> list[str]:
            """Returns what is wrong with the pattern's length."""
            if not self.pattern:
                return ["pattern is empty, expected at least one block"]
            if self.num_layers >= len(self.pattern):
                return []
            return [f"num_layers ({self.num_layers}) is less than the pattern's length ({len(self.pattern)})"]

    def setup(self) -> None:
        """Declares each block of the pattern, stacked over the layers that use it."""
        cfg = self.config
        period = len(cfg.pattern)
        self._names = tuple(f"pattern[{j}]" for j in range(period))
        for j, (name, block) in enumerate(zip(self._names, cfg.pattern, strict=True)):
            # Left-over layers are the pattern's first ones, so its early blocks may have one copy more.
            count = (cfg.num_layers - j + period - 1) // period
            self.add_child(name, block, stacked=count, input_dim=cfg.input_dim)
        self.add_child("remat", cfg.remat)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, caches: Any = None
    ) -> tuple[Float[Array, "B T E"], Any]:
        """Returns the last residual stream, and the caches as a tuple with one entry a layer (None in training)."""
        if caches is None:
            return self._run(x, self._trained(sequences), unrolled=not self.config.scan), None
        extended: list[Any] = []

        def decoded(block: Block, carry: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
            y, cache = block(carry, sequences, caches[len(extended)])
            extended.append(cache)
            return y

        return self._run(x, decoded, unrolled=True), tuple(extended)

    def _trained(self, sequences: Sequences) -> Callable[..., Float[Array, "B T E"]]:
        """Returns the call of one layer, recomputed in the backward pass as `remat` says."""

        def layer(block: Block, carry: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
            return block(self.tag("layer_input", carry), sequences)[0]

        # False saves everything, True recomputes everything, anything else is a policy of what to save.
        policy = False if self.remat is None else self.remat.policy()
        if policy is False:
            return layer
        saved = None if policy is True else policy
        return lambda block, carry: kn.remat(lambda c: layer(block, c), saved)(carry)

    def _run(
        self, x: Float[Array, "B T E"], layer: Callable[..., Float[Array, "B T E"]], *, unrolled: bool
    ) -> Float[Array, "B T E"]:
        def one_repeat(names: tuple[str, ...]) -> Callable[..., Any]:
            def body(carry: Float[Array, "B T E"], _: None) -> tuple[Float[Array, "B T E"], None]:
                for name in names:
                    carry = layer(self.children[name], carry)
                return carry, None

            return body

        repeats, rest = divmod(self.config.num_layers, len(self._names))
        x, _ = kn.scan(one_repeat(self._names), x, over=self._names, length=repeats, unrolled=unrolled)
        if rest:
            names = self._names[:rest]
            x, _ = kn.scan(one_repeat(names), x, over=names, start=repeats, length=1, unrolled=True)
        return x

    @kn.nowrap
    def layer_number(self, child: str, index: int) -> int:
        """Returns the number in the tower of copy `index` of `pattern[j]`."""
        return index * len(self._names) + self._names.index(child)

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> tuple[Any, ...]:
        """Returns each layer's layout, in the tower's order."""
        layouts = [block.cache_spec(rows, length, dtype) for block in self.pattern]
        return tuple(layouts[i % len(layouts)] for i in range(self.config.num_layers))

    @kn.nowrap
    def unstacked(self, params: Any) -> Any:
        """Returns the parameters with each block of the pattern as a tuple of per-layer trees."""
        named = zip(self._names, self.pattern, strict=True)
        unstacked = {name: unstack(params[name], block.num_stacked or 0) for name, block in named if name in params}
        return {**params, **unstacked}
