"""Reading what XLA and ptxas say of a compiled kernel, and how many blocks a multiprocessor holds."""

import pytest
from kanawa.errors import KernelError
from kanawa_backends_gpu.schedule import Compiled, Launch, read_launches, read_report, resident_blocks
from kanawa_backends_gpu.target_config import SILICON

REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'attention_over_cache' for 'sm_90a'
ptxas info    : Function properties for attention_over_cache
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 110 registers, used 1 barriers
ptxas info    : Compiling entry function 'too_wide' for 'sm_90a'
ptxas info    : Function properties for too_wide
    96 bytes stack frame, 88 bytes spill stores, 132 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 96 bytes cumulative stack size, 2048 bytes smem
"""

THUNKS = """\
001: kCustomKernel [source       | next=002 (1)] loop_add_fusion grid: [3, 1, 1] threads: [32, 1, 1]  shared_memory: 0 bytes
002: kCustomKernel [prev=001 (1) | sink        ] attention_over_cache_1 grid: [32, 8, 2] threads: [128, 1, 1]  shared_memory: 71680 bytes
"""  # noqa: E501


def test_ptxas_tells_registers_spills_and_static_memory():
    kernels = read_report(REPORT)
    assert list(kernels) == ["attention_over_cache", "too_wide"]
    assert kernels["attention_over_cache"].registers == 110
    assert kernels["attention_over_cache"].spill_store_bytes == 0
    wide = kernels["too_wide"]
    assert (wide.stack_bytes, wide.spill_store_bytes, wide.spill_load_bytes) == (96, 88, 132)
    assert wide.static_shared_bytes == 2048


def test_a_report_in_other_words_is_an_error_that_shows_them():
    with pytest.raises(KernelError, match=r"ptxas reported other without its registers .*registers: many"):
        read_report("Compiling entry function 'other' for 'sm_90a'\nregisters: many")


def test_launches_are_read_and_a_numbered_pallas_call_is_known_as_ours():
    launches = read_launches(THUNKS)
    assert launches["attention_over_cache_1"] == Launch((32, 8, 2), 128, 71680)
    program = 'custom-call(), metadata={op_name="jit(f)/attention_over_cache/pallas_call"}'
    assert Compiled(program, launches, {}, 0).calls == ("attention_over_cache_1",)


@pytest.mark.parametrize(
    ("registers", "threads", "shared_bytes", "blocks"),
    [
        (32, 1024, 0, 2),  # By registers and by threads: 65,536 over 32 x 1,024.
        (110, 128, 71_680, 3),  # By shared memory: 228 KiB over 71 KiB.
        (33, 64, 0, 25),  # 33 registers a thread take 1,280 a warp, not 1,056.
        (16, 32, 0, 32),  # No multiprocessor holds more.
        (255, 1024, 0, 0),  # 261,120 registers in one block.
    ],
)
def test_blocks_that_a_hopper_multiprocessor_holds(registers, threads, shared_bytes, blocks):
    chip = SILICON["hopper"]
    assert resident_blocks(chip, registers=registers, threads=threads, shared_bytes=shared_bytes) == blocks
