"""Which errors mean that another process was lost, as JAX, Gloo, orbax and the coordination service word them."""

import pytest
from jax.errors import JaxRuntimeError
from kanawa.contracts import CheckpointSaveError
from kanawa_runtime.exit_codes import LOST as LOST_CODE
from kanawa_runtime.train.peers import PeerLostError, lost_peer

LOST = [
    JaxRuntimeError("UNAVAILABLE: recvmsg:Connection reset by peer"),
    JaxRuntimeError("ABORTED: Barrier failed"),
    JaxRuntimeError("DEADLINE_EXCEEDED: GetKeyValue() timed out with key: cpu:global_topology/1"),
    JaxRuntimeError("CANCELLED: Cancelled by call to shutdown"),
    JaxRuntimeError("FAILED_PRECONDITION: Gloo all-reduce failed: [pair.cc:547] Connection closed by peer"),
    JaxRuntimeError("INTERNAL: NCCL operation ncclGroupEnd() failed: remote process exited"),
    JaxRuntimeError("INTERNAL: Coordination service agent is in ERROR state"),
    ValueError("UNKNOWN: Gloo AllGather failed: [pair.cc:538] Read error [127.0.0.1]:22158: Connection reset by peer"),
    RuntimeError("Barrier timed out. Id: orbax-finalize"),
    TimeoutError("barrier of orbax wasn't reached by process 1"),
    PeerLostError("they don't come"),
]
OURS = [
    JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1234 bytes"),
    JaxRuntimeError("INVALID_ARGUMENT: Executable expected 3 arguments"),
    JaxRuntimeError("INTERNAL: Mosaic failed to compile TPU kernel"),
    RuntimeError("socket of the data server: UNAVAILABLE"),
    ConnectionResetError("the bucket closed the connection"),
    CheckpointSaveError("No space left on device"),
    ValueError("Gloo is a name like any other"),
]


@pytest.mark.parametrize("error", LOST, ids=str)
def test_what_a_lost_peer_looks_like(error):
    assert lost_peer(error)
    assert "\n" not in lost_peer(error)
    wrapped = CheckpointSaveError("checkpoint 7 could not be saved")
    wrapped.__cause__ = error
    assert lost_peer(wrapped) == lost_peer(error)
    assert PeerLostError.exit_code == LOST_CODE


@pytest.mark.parametrize("error", OURS, ids=str)
def test_what_is_this_process_own(error):
    assert lost_peer(error) is None


def test_errors_that_name_each_other_end():
    one, other = RuntimeError("a"), RuntimeError("b")
    one.__cause__, other.__cause__ = other, one
    assert lost_peer(one) is None
