"""The processor's description, as /proc/cpuinfo lists it on several machines."""

import pytest
from kanawa_backends_cpu import processor as described
from kanawa_backends_cpu.processor import parse_cpuinfo, processor

X86 = """processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8481C
flags\t\t: fpu avx2 fma avx512f avx512bw avx512vl avx512_bf16 amx_tile amx_bf16

processor\t: 1
model name\t: Another
flags\t\t: fpu
"""
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd bf16\nCPU implementer\t: 0x41\n"


@pytest.mark.parametrize(
    "text, registers, has_bf16_units",
    [(X86, (16, 4), True), (ARM, (4, 4), False), ("flags: avx2 fma", (8, 2), False), ("flags: sse2", None, False)],
)
def test_features_decide_the_registers(text, registers, has_bf16_units):
    found = parse_cpuinfo(text)
    assert (found.vector_registers, found.has_bf16_units) == (registers, has_bf16_units)


def test_the_first_processor_counts_and_has_its_makers_name():
    assert parse_cpuinfo(X86).name == "Intel(R) Xeon(R) Platinum 8481C"
    assert parse_cpuinfo(X86).has("amx_tile", "fma") and not parse_cpuinfo(X86).has("asimd", "fma")


def test_without_cpuinfo_the_architecture_is_what_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(described, "_CPUINFO", tmp_path / "absent")
    monkeypatch.setattr(described.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(described.platform, "processor", lambda: "")
    found = processor.__wrapped__()
    assert (found.name, found.vector_registers) == ("arm64", (4, 4))


def test_this_machine_has_a_name():
    assert processor().name
