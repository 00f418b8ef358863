"""The runtime's variables, as AWS's guides spell them."""

import pytest
from kanawa.errors import UsageError
from kanawa_backends_neuron.environment import compiler_flags, runtime_environment


def test_one_process_an_instance():
    found = runtime_environment(["head", "worker"], index=1, devices_per_host=64)
    assert found == {
        "NEURON_RT_ROOT_COMM_ID": "head:62182",
        "NEURON_PJRT_PROCESSES_NUM_DEVICES": "64,64",
        "NEURON_PJRT_PROCESS_INDEX": "1",
        "FI_PROVIDER": "efa",
        "FI_EFA_USE_DEVICE_RDMA": "1",
        "FI_EFA_FORK_SAFE": "1",
    }


def test_a_single_instance_needs_no_network():
    found = runtime_environment(["here"], index=0, devices_per_host=64, port=5000)
    assert found["NEURON_RT_ROOT_COMM_ID"] == "here:5000"
    assert not [name for name in found if name.startswith("FI_")]


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_without_a_host(index):
    with pytest.raises(UsageError, match="valid: 0 to 1"):
        runtime_environment(["a", "b"], index=index, devices_per_host=64)


def test_the_compiler_knows_training():
    assert "llm-training" in compiler_flags("train")
    assert "llm-training" not in compiler_flags("decode")
