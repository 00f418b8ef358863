"""The variables of the runtime, the PJRT plugin and the compiler, as AWS's guides spell them."""

import pytest
from kanawa.errors import UsageError
from kanawa_backends_neuron.device import DEVICES
from kanawa_backends_neuron.environment import (
    INSTANCES,
    compiler_flags,
    process_environment,
    runtime_environment,
)


def test_one_process_an_instance():
    assert runtime_environment(["head", "worker"], index=1) == {
        "NEURON_RT_ROOT_COMM_ID": "head:62182",
        "NEURON_PJRT_PROCESSES_NUM_DEVICES": "64,64",
        "NEURON_PJRT_PROCESS_INDEX": "1",
        "NEURON_LOGICAL_NC_CONFIG": "2",
        "NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS": "1",
        "FI_PROVIDER": "efa",
        "FI_EFA_USE_DEVICE_RDMA": "1",
        "FI_EFA_FORK_SAFE": "1",
        "OFI_NCCL_PROTOCOL": "RDMA",
        "OFI_NCCL_MR_CACHE_DISABLE": "1",
    }


@pytest.mark.parametrize(
    "device, logical_cores, devices, cores",
    [("trn1", None, "32", "1"), ("trn2", None, "64", "2"), ("trn2", 1, "128", "1")],
)
def test_devices_are_logical_cores(device, logical_cores, devices, cores):
    variables = runtime_environment(["here"], 0, device, logical_cores)
    assert variables["NEURON_PJRT_PROCESSES_NUM_DEVICES"] == devices
    assert variables["NEURON_LOGICAL_NC_CONFIG"] == cores


def test_instances_are_those_of_the_device_specs():
    specs = {spec.name: spec for spec in DEVICES}
    # It is planned for alone: its hosts' settings aren't known here.
    assert specs.keys() - INSTANCES.keys() == {"trn3"}
    for name, instance in INSTANCES.items():
        spec = specs[name]
        assert spec.chips_per_host * spec.jax_devices_per_chip == instance.cores // instance.logical[0]


def test_a_single_instance_needs_no_network():
    variables = runtime_environment(["here"], index=0, port=5000)
    assert variables["NEURON_RT_ROOT_COMM_ID"] == "here:5000"
    assert not [name for name in variables if name.startswith(("FI_", "OFI_"))]


def test_ipv6_addresses_stand_in_brackets():
    assert runtime_environment(["fd00::1"], 0)["NEURON_RT_ROOT_COMM_ID"] == "[fd00::1]:62182"


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_without_a_host(index):
    with pytest.raises(UsageError, match="valid: 0 to 1"):
        runtime_environment(["a", "b"], index=index)


def test_unknown_chips_and_numbers_of_cores():
    with pytest.raises(UsageError, match="no Trainium called 'trn3'; did you mean .*known: trn1, trn2"):
        compiler_flags("train", "trn3")
    with pytest.raises(UsageError, match="logical cores of 2 on trn1; valid: 1"):
        runtime_environment(["a"], 0, "trn1", 2)


def test_the_compiler_knows_the_chip_and_training():
    assert compiler_flags("decode") == "--framework=XLA --target=trn2 --model-type=transformer --lnc=2"
    assert "--lnc" not in compiler_flags("decode", "trn1")
    assert "--lnc=1" in compiler_flags("train", "trn2", 1)
    assert "--distribution-strategy=llm-training" in compiler_flags("train")
    assert "llm-training" not in compiler_flags("prefill")


def test_a_gang_s_process_gets_its_variables_from_the_hook():
    from kanawa_backends_neuron.plugin import BACKEND

    (device,) = [each for each in DEVICES if each.name == "trn2"]
    told = BACKEND.kanawa_process_environment(device=device, root="head", processes=4, index=3)
    assert told == process_environment(device, "head", 4, 3)
    assert told["NEURON_RT_ROOT_COMM_ID"] == "head:62182" and told["NEURON_PJRT_PROCESS_INDEX"] == "3"
    assert told["NEURON_PJRT_PROCESSES_NUM_DEVICES"] == "64,64,64,64"
    assert told["NEURON_CC_FLAGS"] == compiler_flags("train", "trn2")
