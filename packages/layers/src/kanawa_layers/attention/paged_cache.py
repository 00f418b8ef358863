"""A paged cache: pages of one pool, owned by rows through a page table (Kwon et al. 2023, arXiv:2309.06180)."""

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Int, Num
from kanawa.contracts import Cache, CacheState, CacheView, Sequences
from kanawa.errors import ModuleError

from kanawa_layers.attention.dense_cache import arrays_by_name, confine_nonfinite, layout


class PagedCache(Cache):
    """Keys and values [pages, page_size, kv_heads, width]; token p of a row is in page `table[row, p // page_size]`.

    Without `Sequences.page_table`, row b owns the b-th run of pages, and `num_pages` None makes room for that. With
    `query_starts`, the one row is a flat batch of many sequences. Padding (segment id 0) isn't written. `bits` stores
    16-bit floats as integers of the same bits, for compilers that would convert a whole pool of bfloat16 to write or
    read one page.
    """

    exact = True

    class Config(Cache.Config):
        page_size: kn.Size = 16
        num_pages: kn.Size | None = None
        bits: bool = False

    @kn.nowrap
    def spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layout of both pools; `num_pages`, or enough for all rows at full length."""
        cfg = self.config
        pages = cfg.num_pages or rows * -(-length // cfg.page_size)
        stored = "uint16" if cfg.bits and dtype in ("bfloat16", "float16") else dtype
        return layout(cfg, (pages, cfg.page_size), ("pages", None), stored)

    @kn.nowrap
    def _pages_a_row(self, pages: int, rows: int, length: int) -> int:
        """Returns how many pages each row owns without a page table; raises ModuleError for too few pages."""
        own, rest = divmod(pages, rows)
        if rest or own * self.config.page_size < length:
            message = (
                f"{self.path}: {pages} pages of {self.config.page_size} tokens for {rows} rows of {length} tokens, and "
                "no page table: rows own equal runs of pages; pass Sequences.page_table, or set "
                f"num_pages to {rows * -(-length // self.config.page_size)} or a larger multiple of {rows}, or none"
            )
            raise ModuleError(message)
        return own

    def extend(
        self,
        state: CacheState,
        k: Num[Array, "B T K D"],
        v: Num[Array, "B T K D"] | None,
        sequences: Sequences,
    ) -> CacheView:
        """Writes each token into its page; the operation reads pages where they are."""
        rows, length = k.shape[:2]
        pages = state["keys"].shape[0]
        table = sequences.page_table
        if table is None:
            table = jnp.arange(pages, dtype=jnp.int32).reshape(rows, self._pages_a_row(pages, rows, length))
        lengths = jnp.zeros((), jnp.int32) if sequences.lengths is None else sequences.lengths
        lengths = jnp.broadcast_to(lengths, table.shape[:1])
        positions, owners = _positions_and_owners(sequences, lengths, length)
        page = _page_of(table, owners, positions // self.config.page_size, pages)
        if sequences.segment_ids is not None:
            # One past the last page: mode="drop" below discards such writes; a negative page would wrap to the end.
            page = jnp.where(sequences.segment_ids == 0, pages, page)
        at = positions % self.config.page_size
        pools = {
            name: state[name].at[page, at].set(_as_stored(new, state[name].dtype), mode="drop")
            for name, new in arrays_by_name(*confine_nonfinite(k, v)).items()
        }
        starts = sequences.query_starts
        ends = lengths + (length if starts is None else starts[1:] - starts[:-1])
        return CacheView(pools, pools["keys"], pools.get("values"), kv_lengths=ends, page_table=table)


def _as_stored(new: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Returns new keys or values in the pool's dtype."""
    if dtype != jnp.uint16:
        return new.astype(dtype)
    if new.dtype.itemsize != 2:
        message = f"a paged cache with `bits` stores 16-bit floats, but got {new.dtype}; leave `bits` unset"
        raise ModuleError(message)
    return jax.lax.bitcast_convert_type(new, dtype)


def _positions_and_owners(sequences: Sequences, lengths: Int[Array, " R"], length: int) -> tuple[jax.Array, jax.Array]:
    """Returns the position of each new token and the row of the page table it belongs to, both [B, T]."""
    count = jnp.arange(length, dtype=jnp.int32)[None]
    if sequences.query_starts is None:
        rows = jnp.arange(lengths.shape[0], dtype=jnp.int32)[:, None]
        return lengths[:, None] + count, jnp.broadcast_to(rows, (lengths.shape[0], length))
    owners = sequences.token_owners(length)[None]
    # Index in the flat batch, minus its sequence's start, plus the row's length so far.
    return count + (lengths - sequences.query_starts[:-1])[owners], owners


def _page_of(table: jax.Array, owners: jax.Array, entry: jax.Array, pages: int) -> jax.Array:
    """Returns the page in the pool; past the end of the table `pages`, to which nothing is written."""
    # The clamp makes the gather valid; the page past the pool then drops the write.
    return jnp.where(entry < table.shape[1], table[owners, jnp.minimum(entry, table.shape[1] - 1)], pages)
