"""Any cache of rows behind the engine: a row a slot, for caches that pages can't take the place of."""

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Num
from kanawa.contracts import Cache, CacheState, CacheView, Sequences
from kanawa.errors import UsageError


class SlotCache(Cache):
    """Stores a sequence's row of `rows` in its slot; a slot is empty again when its next sequence begins.

    `rows` sees rows alone, as in `generate`: what its model computes is what is served.
    """

    rows: Cache

    class Config(Cache.Config):
        rows: Cache.Config = kn.REQUIRED

    def setup(self) -> None:
        """Declares the cache of rows."""
        cfg = self.config
        shape = {"num_kv_heads": cfg.num_kv_heads, "key_dim": cfg.key_dim, "value_dim": cfg.value_dim}
        self.add_child("rows", cfg.rows, reach=cfg.reach, **shape)

    @kn.nowrap
    def spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layout of the cache of rows; raises UsageError for one whose arrays aren't a row a sequence."""
        specs = self.rows.spec(rows, length, dtype)
        other = [name for name, spec in specs.items() if spec.axes[:1] != ("batch",)]
        if other:
            message = (
                f"{self.path}: {type(self.rows).__name__} can't be served: its array {other[0]} has the axes "
                f"{specs[other[0]].axes}, expected 'batch' first, a row a sequence; and it isn't exact, so that pages "
                "can't take its place"
            )
            raise UsageError(message)
        return specs

    def extend(
        self,
        state: CacheState,
        k: Num[Array, "B T K D"],
        v: Num[Array, "B T K D"] | None,
        sequences: Sequences,
    ) -> CacheView:
        """Extends the rows in the sequences' slots."""
        if sequences.slots is None:
            return self.rows.extend(state, k, v, sequences)
        lengths = jnp.zeros((), jnp.int32) if sequences.lengths is None else sequences.lengths
        begun = jnp.broadcast_to(lengths > 0, (k.shape[0],))
        own = {name: _of_begun(array[sequences.slots], begun) for name, array in state.items()}
        view = self.rows.extend(own, k, v, sequences._replace(slots=None, page_table=None))
        new = {name: state[name].at[sequences.slots].set(array) for name, array in (view.state or {}).items()}
        return view._replace(state=new)


def _of_begun(rows: Array, begun: Array) -> Array:
    """Returns the rows of sequences that have begun, and zeros for those that begin."""
    return jnp.where(begun.reshape(-1, *(1,) * (rows.ndim - 1)), rows, jnp.zeros((), rows.dtype))
