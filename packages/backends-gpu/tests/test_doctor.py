"""Preflight checks of GPUs against pretended machines."""

import pytest
from kanawa_backends_gpu.doctor import check_driver, check_libraries, check_wheels

NVRM = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Jan  1 00:00:00 UTC 2026\nGCC version: gcc 12.3.0"


def installed(**versions):
    return {name.replace("_", "-"): version for name, version in versions.items()}.get


CUDA13 = {"jaxlib": "0.11.2", "jax_cuda13_plugin": "0.11.2", "jax_cuda13_pjrt": "0.11.2"}


@pytest.mark.parametrize(
    ("driver", "level"), [("580.65.06", "ok"), ("595.10", "ok"), ("570.124.04", "error"), ("535.183", "error")]
)
def test_a_driver_older_than_the_wheels_cuda_is_an_error(driver, level):
    (told,) = check_driver(NVRM.format(driver), installed(**CUDA13))
    assert told.level == level
    if level == "error":
        assert f"driver {driver} is older than 580.65.6, which CUDA 13 asks for" in told.message
        assert "uses the CPU" in told.meaning and "update the driver" in told.fix


def test_a_driver_that_says_nothing_is_a_warning():
    (told,) = check_driver("", installed(**CUDA13))
    assert (told.level, told.subject) == ("warning", "gpu driver")


def test_wheels_of_another_release_or_of_two_are_errors():
    (told,) = check_wheels(installed(**CUDA13))
    assert told.level == "ok"
    (told,) = check_wheels(installed(**{**CUDA13, "jax_cuda13_pjrt": "0.10.2"}))
    assert told.message == "jax-cuda13-pjrt 0.10.2 beside jaxlib 0.11.2"
    assert told.fix == "pip install jax-cuda13-pjrt==0.11.2"
    (told,) = check_wheels(installed(**CUDA13, jax_cuda12_plugin="0.11.2"))
    assert "both installed" in told.message and told.level == "error"
    assert check_wheels(installed(jaxlib="0.11.2")) == []


def test_other_cuda_libraries_before_the_wheels_are_told():
    (told,) = check_libraries({"LD_LIBRARY_PATH": "/usr/lib:/usr/local/cuda-12.4/lib64"})
    assert told.level == "warning" and "/usr/local/cuda-12.4/lib64" in told.message
    assert check_libraries({"LD_LIBRARY_PATH": "/usr/lib"}) == check_libraries({}) == []
