"""What the CPU's compiler needs, by what a program is for and how many devices it has."""

from kanawa.plugins import ProgramTraits
from kanawa_backends_cpu.device import CPU
from kanawa_backends_cpu.program_traits import program_traits


def test_training_is_unrolled_on_one_device_and_serving_reads_pages_in_use():
    assert program_traits(CPU, "train", 10, 1) == ProgramTraits(unrolled_layers=16, recomputes_shared=True)
    assert program_traits(CPU, "train", 10, 8) == ProgramTraits()
    serving = ProgramTraits(converts_whole_arrays=True, reads_filled_pages=True)
    assert program_traits(CPU, "decode", 10, 8) == serving
    alone = program_traits(CPU, "prefill", 10, 1)
    assert alone.recomputes_shared and alone.reads_filled_pages and alone.converts_whole_arrays
