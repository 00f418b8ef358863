"""What attention is refused, before anything is computed: argument, value and rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.errors import KernelError
from kanawa.kernels import FULL, MaskSpec
from kanawa.kernels.attention import attention

B, T, H, K, D, DV = 2, 6, 4, 2, 8, 5


@pytest.fixture
def qkv(normal):
    return normal(B, T, H, D), normal(B, T, K, D), normal(B, T, K, DV)


def paged(q, k, v, table=((0, 1), (1, 0)), lengths=(9, 12), **options):
    """A call over a pool of two pages of six tokens."""
    table, lengths = (np.asarray(x, np.int32) for x in (table, lengths))
    return attention(q[:, :1], k, v, page_table=table, kv_lengths=lengths, mode="decode", **options)


def ragged(q, k, v, starts, lengths=(9, 12)):
    options = {"page_table": np.zeros((2, 2), np.int32), "kv_lengths": np.asarray(lengths, np.int32)}
    return attention(q[:1], k, v, query_starts=np.asarray(starts, np.int32), mode="prefill", **options)


WRONG = {
    "k has width 4": lambda q, k, v: attention(q, k[..., :4], v),
    "4 heads over 3 key heads": lambda q, k, v: attention(q, *[jnp.repeat(x, 3, 2)[:, :, :3] for x in (k, v)]),
    "must have 4 dimensions": lambda q, k, v: attention(q[0], k, v),
    "pass q_positions or kv_lengths": lambda q, k, v: attention(q[:, :2], k, v),
    "need q_segment_ids and kv": lambda q, k, v: attention(q, k, v, mask=MaskSpec(segments=True)),
    "pass prefix_lengths": lambda q, k, v: attention(q, k, v, mask=MaskSpec(prefix=True)),
    "sinks has shape": lambda q, k, v: attention(q, k, v, sinks=jnp.zeros(3)),
    "doesn't broadcast": lambda q, k, v: attention(q, k, v, bias=jnp.zeros((1, 3, T, T))),
    "page_table needs kv_lengths": lambda q, k, v: attention(
        q, k, v, mask=FULL, page_table=jnp.zeros((B, 1), jnp.int32)
    ),
    "mode 'serve' is not one of train": lambda q, k, v: attention(q, k, v, mode="serve"),
    r"page_table has shape \(2,\); it must have 2 dimensions": lambda q, k, v: attention(
        q, k, v, page_table=np.zeros(2, np.int32), kv_lengths=np.ones(2, np.int32)
    ),
    r"dtypes are mixed \(q float32, k bfloat16, v float32\); cast": lambda q, k, v: attention(
        q, k.astype(jnp.bfloat16), v
    ),
    "k is int32; it must be floating-point": lambda q, k, v: attention(q, k.astype(jnp.int32), v),
    "q_segment_ids is float32; ids are integers": lambda q, k, v: attention(q, k, v, q_segment_ids=jnp.ones((B, T))),
    "q_positions is float32; positions are integers": lambda q, k, v: attention(q, k, v, q_positions=jnp.ones((B, T))),
    "kv_lengths is float32; they are integers": lambda q, k, v: attention(q, k, v, kv_lengths=jnp.ones(B)),
    "q_segment_ids has shape": lambda q, k, v: attention(q, k, v, q_segment_ids=jnp.ones((B, T + 1), jnp.int32)),
    r"page_table\[1, 0\] is 2; the row's keys need it, and the pool has pages 0 to 1": lambda q, k, v: paged(
        q, k, v, table=((0, 1), (2, 0))
    ),
    r"page_table\[0, 1\] is -1 \(and 1 more\)": lambda q, k, v: paged(q, k, v, table=((0, -1), (0, 7))),
    r"kv_lengths\[0\] is 13; the page table reaches 12 keys": lambda q, k, v: paged(q, k, v, lengths=(13, 1)),
    r"kv_lengths\[1\] is -1": lambda q, k, v: paged(q, k, v, lengths=(3, -1)),
    r"kv_lengths\[0\] is 7; there are 6 keys": lambda q, k, v: attention(q, k, v, kv_lengths=np.array([7, 6])),
    r"prefix_lengths\[1\] is -2": lambda q, k, v: attention(
        q, k, v, mask=MaskSpec(prefix=True), prefix_lengths=np.array([1, -2])
    ),
    r"query_starts\[2\] is 1; starts are at least 0 and don't": lambda q, k, v: ragged(q, k, v, [0, 4, 1]),
    r"query_starts\[0\] is -1; starts are at least 0": lambda q, k, v: ragged(q, k, v, [-1, 4, 6]),
    r"query_starts\[2\] is 7; there are 6 queries": lambda q, k, v: ragged(q, k, v, [0, 4, 7]),
    "scale -1 must be positive and finite": lambda q, k, v: attention(q, k, v, scale=-1.0),
    "scale nan must be positive and finite": lambda q, k, v: attention(q, k, v, scale=float("nan")),
    "logit_cap 0 must be positive and finite": lambda q, k, v: attention(q, k, v, logit_cap=0.0),
    "logit_cap inf must be": lambda q, k, v: attention(q, k, v, logit_cap=float("inf")),
    "dropout_rate 1 must be at least 0 and less than 1": lambda q, k, v: attention(q, k, v, dropout_rate=1.0),
    "dropout_rate 0.5 needs a dropout_key": lambda q, k, v: attention(q, k, v, dropout_rate=0.5),
    "in mode 'decode': weights are dropped in training only": lambda q, k, v: paged(
        q, k, v, dropout_rate=0.5, dropout_key=jax.random.key(0)
    ),
    r"alibi_slopes has shape \(2,\), expected \(4,\)": lambda q, k, v: attention(q, k, v, alibi_slopes=jnp.ones(2)),
    "hold nothing": lambda q, k, v: attention(q[:, :0], k[:, :0], v[:, :0]),
}


@pytest.mark.parametrize("words", WRONG)
def test_impossible_input_raises_and_says_what(words, qkv):
    with pytest.raises(KernelError, match=words):
        WRONG[words](*qkv)


def test_under_jit_an_index_that_is_out_of_range_reads_some_page_and_raises_nothing(qkv):
    q, k, v = qkv
    bad, good = np.array([[0, 5], [-3, 1]], np.int32), np.array([[0, 1], [0, 1]], np.int32)
    compiled = jax.jit(lambda table: paged_traced(q, k, v, table))
    np.testing.assert_array_equal(compiled(bad), compiled(good))


def paged_traced(q, k, v, table):
    lengths = jnp.array([9, 12], jnp.int32)
    return attention(q[:, :1], k, v, page_table=table, kv_lengths=lengths, mode="decode")


def test_entries_that_no_key_needs_may_be_anything(qkv):
    first = paged(*qkv, table=((0, 99), (0, 1)), lengths=(6, 12))
    np.testing.assert_array_equal(first, paged(*qkv, table=((0, -1), (0, 1)), lengths=(6, 12)))


def test_rows_of_padding_and_rows_without_keys_give_finite_numbers(qkv):
    q, k, v = qkv
    ids = jnp.array([[0] * T, [1, 1, 0, 0, 2, 2]], jnp.int32)
    assert np.isfinite(attention(q, k, v, q_segment_ids=ids)).all()
    empty = attention(q, k, v, kv_lengths=jnp.array([0, T]), mode="prefill")
    assert not np.any(empty[0]) and np.any(empty[1])
