"""Masks against a brute-force definition, and their algebra."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.kernels.masks import CAUSAL, FULL, MaskError, MaskSpec, sliding_window

ATOMS = [
    FULL,
    CAUSAL,
    MaskSpec(window=(1, 2)),
    MaskSpec(window=(None, 0)),
    MaskSpec(chunk=3),
    MaskSpec(prefix=True),
    MaskSpec(segments=True),
    MaskSpec(causal=True, prefix=True),
    MaskSpec(causal=True, window=(2, None), segments=True),
]
POSITIONS = np.arange(7)
SEGMENTS = np.array([1, 1, 1, 2, 2, 0, 0])
PREFIX = 3


def dense(mask):
    """The mask as bool [7, 7]."""
    found = mask.allowed(
        jnp.asarray(POSITIONS)[None],
        jnp.asarray(POSITIONS)[None],
        jnp.asarray(SEGMENTS)[None],
        jnp.asarray(SEGMENTS)[None],
        jnp.array([PREFIX]),
    )
    return np.ones((7, 7), bool) if found is None else np.broadcast_to(np.asarray(found), (1, 7, 7))[0]


def oracle(mask, q, k):
    """The definition, one pair of positions at a time."""
    atoms = []
    if mask.causal:
        atoms.append(k <= q)
    if mask.window is not None:
        left, right = mask.window
        atoms.append((left is None or q - left <= k) and (right is None or k <= q + right))
    if mask.chunk is not None:
        atoms.append(q // mask.chunk == k // mask.chunk)
    allowed = all(atoms)
    if mask.prefix:
        allowed = k < PREFIX or (bool(atoms) and allowed)
    return allowed and (not mask.segments or SEGMENTS[q] == SEGMENTS[k])


@pytest.mark.parametrize("mask", ATOMS, ids=lambda m: m.describe())
def test_atoms_match_their_definition(mask):
    expected = [[oracle(mask, q, k) for k in POSITIONS] for q in POSITIONS]
    np.testing.assert_array_equal(dense(mask), expected)


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations(ATOMS, 2)), ids=lambda m: m.describe())
def test_and_or_are_those_of_booleans(a, b):
    np.testing.assert_array_equal(dense(a & b), dense(a) & dense(b))
    np.testing.assert_array_equal(dense(a | b), dense(a) | dense(b))
    np.testing.assert_array_equal(dense((a | b) & a), dense(a))


def test_equal_masks_have_one_form():
    assert MaskSpec(causal=True, window=(3, 5)) == sliding_window(4)
    assert MaskSpec(window=(None, None)) == FULL
    assert CAUSAL | MaskSpec(prefix=True) == MaskSpec(causal=True, prefix=True)
    assert CAUSAL & sliding_window(9) & sliding_window(4) == sliding_window(4)
    assert hash(CAUSAL & FULL) == hash(CAUSAL)


@pytest.mark.parametrize("mask", ATOMS, ids=lambda m: m.describe())
def test_keeps_own_position_is_true_only_of_masks_with_a_whole_diagonal(mask):
    assert mask.keeps_own_position == bool(np.diag(dense(mask)).all())


def test_describe_is_readable():
    mask = (sliding_window(1024) | MaskSpec(prefix=True)) & MaskSpec(segments=True)
    assert mask.describe() == "(causal&window(1023,None)|prefix)&segments"


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"chunk": 0}, "at least 1"), ({"window": (-1, 0)}, r"\(left, right\)")],
)
def test_impossible_masks_are_refused(fields, words):
    with pytest.raises(MaskError, match=words):
        MaskSpec(**fields)


def test_missing_operands_are_named():
    with pytest.raises(MaskError, match="pass prefix_lengths="):
        MaskSpec(prefix=True).allowed(jnp.arange(2), jnp.arange(2))
    with pytest.raises(MaskError, match="pass q_segment_ids="):
        MaskSpec(segments=True).allowed(jnp.arange(2), jnp.arange(2))


def even_distance(q, k):
    """A predicate, for the catalog."""
    return (q - k) % 2 == 0


def test_predicates_come_from_the_catalog():
    from kanawa.plugins import PluginHost, set_host
    from kanawa.plugins.discovery import Entry, Provider

    entry = Entry(kind="masks", name="even", value=f"{__name__}:even_distance")
    mine = Provider(name="mine", version="1", entries=(entry,))
    set_host(PluginHost(discover=lambda: [mine]))
    found = dense(CAUSAL & MaskSpec(predicates=("even",)))
    expected = [[k <= q and (q - k) % 2 == 0 for k in POSITIONS] for q in POSITIONS]
    np.testing.assert_array_equal(found, expected)


NATIVE = [
    (),
    ("causal",),
    ("causal", "segments"),
    ("left_window",),
    ("window", "chunk"),
    ("any_of", "causal", "prefix"),
]
WHOLE = [
    *ATOMS,
    MaskSpec(window=(1, 2), chunk=3, segments=True),
    MaskSpec(causal=True, chunk=3, prefix=True, segments=True),
    CAUSAL & (MaskSpec(window=(1, 0)) | MaskSpec(chunk=2)),
]


@pytest.mark.parametrize("native", NATIVE, ids="+".join)
@pytest.mark.parametrize("mask", WHOLE, ids=lambda m: m.describe())
def test_both_parts_of_a_split_allow_what_the_mask_allows(mask, native):
    mine, rest = mask.split(native)
    assert mine.uses <= {*native, *(["window"] if "left_window" in native else [])}
    np.testing.assert_array_equal(dense(mine) & dense(rest), dense(mask))


def test_a_split_takes_all_that_is_native_and_keeps_exceptions_whole():
    mask = MaskSpec(causal=True, window=(4, None), segments=True)
    assert mask.split(("causal", "window", "segments")) == (mask, FULL)
    assert mask.split(("causal",)) == (CAUSAL, MaskSpec(window=(4, None), segments=True))
    assert MaskSpec(window=(1, 2)).split(("left_window",)) == (MaskSpec(window=(1, None)), MaskSpec(window=(None, 2)))
    prefix = MaskSpec(causal=True, prefix=True, segments=True)
    assert prefix.split(("causal", "segments")) == (MaskSpec(segments=True), MaskSpec(causal=True, prefix=True))
    assert prefix.split(("causal", "prefix")) == (MaskSpec(causal=True, prefix=True), MaskSpec(segments=True))
    two = MaskSpec(predicates=("even", "odd"))
    assert two.split(("odd",)) == (MaskSpec(predicates=("odd",)), MaskSpec(predicates=("even",)))
    assert two.split(("predicates",)) == (two, FULL)


AHEAD = np.array([0, 2, 1, 0, 0, 1, 0])


@pytest.mark.parametrize("mask", [CAUSAL, sliding_window(2), CAUSAL & MaskSpec(segments=True)])
def test_lookahead_moves_the_end_of_causality_alone(mask):
    q, k, segments = jnp.asarray(POSITIONS)[None], jnp.asarray(POSITIONS)[None], jnp.asarray(SEGMENTS)[None]
    found = mask.allowed(q, k, segments, segments, lookahead=jnp.asarray(AHEAD)[None])
    left = 7 if mask.window is None else mask.window[0]
    for i in POSITIONS:
        for j in POSITIONS:
            same = not mask.segments or SEGMENTS[i] == SEGMENTS[j]
            seen = j <= i + AHEAD[i] and same and (mask.window is None or j >= i - left)
            assert bool(found[0, i, j]) == seen, (i, j)
