"""Replicas are compared device by device, for every way to lay an array out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from kanawa_runtime.exit_codes import LOST
from kanawa_runtime.train.replicas import (
    Layouts,
    ReplicaCheck,
    ReplicasDifferError,
    all_digests,
    copied,
    differing,
    local_digests,
)

MESH = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))


def laid_out(value, *spec):
    return jax.device_put(value, NamedSharding(MESH, PartitionSpec(*spec)))


def flipped(array, device_number, bit=12):
    """Returns the array with one bit of one device's part flipped, which that device alone sees."""
    parts = []
    for shard in array.addressable_shards:
        part = np.array(shard.data)
        if shard.device == jax.devices()[device_number]:
            part.reshape(-1).view(np.uint32)[0] ^= 1 << bit
        parts.append(jax.device_put(part, shard.data.sharding))
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


def odd(*arrays):
    layouts = Layouts.of(arrays)
    return differing(all_digests(local_digests(arrays, layouts), len(layouts.leaves)), layouts)


@pytest.fixture
def arrays():
    values = jax.random.normal(jax.random.key(0), (3, 8, 8))
    return [laid_out(values[0]), laid_out(values[1], None, "model"), laid_out(values[2], ("data", "model"))]


def test_equal_replicas_are_equal(arrays):
    assert odd(*arrays) == ()
    # One that lies whole on eight devices, one in halves, one without replicas.
    layouts = Layouts.of(arrays)
    assert layouts.leaves == ((0,), (1,))
    assert [len(groups) for groups in layouts.groups] == [1, 2]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("device", [0, 5])
def test_one_bit_names_the_device(arrays, number, device):
    arrays[number] = flipped(arrays[number], device)
    assert odd(*arrays) == (jax.devices()[device].id,)


def test_without_a_majority_all_are_named():
    pair = Mesh(np.array(jax.devices()[:2]), ("data",))
    array = jax.device_put(jnp.arange(8.0), NamedSharding(pair, PartitionSpec()))
    layouts = Layouts.of([flipped(array, 1)])
    assert len(differing({0: ("a",), 1: ("b",)}, layouts)) == 2


def test_state_that_is_kept_in_the_hosts_memory_is_compared_and_copied_there(arrays):
    host = [jax.device_put(array, array.sharding.with_memory_kind("pinned_host")) for array in arrays]
    host[0] = flipped(host[0], 5)
    assert {shard.data.sharding.memory_kind for shard in host[0].addressable_shards} == {"pinned_host"}
    assert odd(*host) == (jax.devices()[5].id,)
    for array in (*host, *arrays):
        again = copied(array)
        assert again.sharding == array.sharding
        for one, other in zip(again.addressable_shards, array.addressable_shards, strict=True):
            assert one.data.unsafe_buffer_pointer() != other.data.unsafe_buffer_pointer()
            np.testing.assert_array_equal(one.data, other.data)


def check_of(results, every_steps=5):
    """Returns a check of a program that gives these results in turn, with what it reports and goes back to."""
    given, seen, back = iter(results), [], []
    program = lambda state, batch: (next(given), "report")  # noqa: E731
    check = ReplicaCheck(program, every_steps, seen.append, lambda step: back.append(step) or [], trusted=0)
    return check, seen, back


def test_a_step_that_differs_is_taken_again(arrays):
    sound, bad = arrays[0], flipped(arrays[0], 3)
    check, seen, back = check_of([bad, sound])
    assert check.is_due(10)
    assert not check.is_due(11)
    state, _ = check.take(sound, None, 10)
    assert state is sound
    assert [(event["verdict"], event["devices"]) for event in seen] == [("transient", [jax.devices()[3].id])]
    assert back == []


def test_one_that_differs_again_ends_the_run(arrays):
    sound, bad = arrays[0], flipped(arrays[0], 3)
    check, seen, back = check_of([sound, bad, bad])
    check.take(sound, None, 5)
    with pytest.raises(ReplicasDifferError, match="in step 10, and again when that was taken a second time") as raised:
        check.take(sound, None, 10)
    assert raised.value.exit_code == LOST
    assert (seen[0]["verdict"], back) == ("persistent", [9])


def test_a_state_that_differed_before_is_not_taken_again(arrays):
    bad = flipped(arrays[0], 3)
    check, seen, back = check_of([bad])
    with pytest.raises(ReplicasDifferError, match="some time after step 0"):
        check.take(bad, None, 5)
    assert (seen[0]["verdict"], back) == ("earlier", [0])
