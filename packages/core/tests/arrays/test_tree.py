"""Paths of nested dictionaries, there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kanawa.arrays.tree import flatten_paths, map_paths, merge_trees, unflatten_paths

NAMES = st.sampled_from(["a", "b", "weight", "layers[0]", "layers[10]"])
LEAVES = st.integers() | st.none() | st.tuples(st.integers())
TREES = st.recursive(
    st.dictionaries(NAMES, LEAVES, min_size=1, max_size=3),
    lambda inner: st.dictionaries(NAMES, LEAVES | inner, min_size=1, max_size=3),
    max_leaves=12,
)


@given(TREES)
def test_flat_paths_lead_back(tree):
    flat = flatten_paths(tree)
    assert unflatten_paths(flat) == tree
    assert not any(isinstance(leaf, dict) for leaf in flat.values())


@given(TREES)
def test_order_is_the_trees_own(tree):
    paths = list(flatten_paths(tree))
    assert paths == list(flatten_paths(unflatten_paths(flatten_paths(tree))))
    tops = list(dict.fromkeys(path.split(".")[0] for path in paths))
    assert tops == list(tree)


@given(TREES)
def test_mapping_gives_every_leaf_its_path(tree):
    flat = flatten_paths(tree)
    assert flatten_paths(map_paths(lambda path, leaf: (path, leaf), tree)) == {p: (p, x) for p, x in flat.items()}


@given(TREES, TREES)
def test_merging_lays_the_second_over_the_first(first, second):
    merged = flatten_paths(merge_trees(first, second))
    over, under = flatten_paths(second), flatten_paths(first)
    assert merged.items() >= over.items()
    kept = merged.keys() - over.keys()
    assert all(merged[path] == under[path] for path in kept)
    hidden = under.keys() - merged.keys()
    assert all(any(p.startswith(f"{q}.") or q.startswith(f"{p}.") for q in over) for p in hidden)


def test_merging_changes_neither():
    first, second = {"a": {"b": 1}}, {"a": {"c": 2}}
    merged = merge_trees(first, second)
    merged["a"]["b"] = 9
    assert (first, second) == ({"a": {"b": 1}}, {"a": {"c": 2}})


@pytest.mark.parametrize("leaf", [(1, 2), [1], "x"])
def test_anything_but_a_mapping_is_a_leaf(leaf):
    assert flatten_paths({"a": {"b": leaf}}) == {"a.b": leaf}


def test_nothing_flattens_to_nothing():
    assert flatten_paths({}) == {}
    assert unflatten_paths({}) == {}
    assert flatten_paths({"a": {}}) == {}
