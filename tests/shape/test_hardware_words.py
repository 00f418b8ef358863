"""The frame knows no hardware: no device, vendor, instruction set or vendor's library in the packages of all."""

import pytest
from hardware_words import FRAME, SAVED, SCHEDULERS, words_in


def test_only_backends_name_hardware(sources):
    breaches = []
    for source in sources:
        name = "/".join(source.path.parts[source.path.parts.index("src") + 1 :])
        if source.package not in FRAME or name.startswith(SCHEDULERS):
            continue
        words = words_in(source.text) - SAVED.get(name, frozenset())
        breaches += [f"{source.where} says {', '.join(sorted(words))}"] if words else []
    assert not breaches, "a kernel, a hook or a DeviceSpec of a backend should say this:\n" + "\n".join(breaches)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("if platform == 'gpu':", {"gpu"}),
        ("def gpu_memory(): ...", {"gpu"}),
        ("class CudaAllocator: ...", {"cuda"}),
        ("os.environ['XLA_PYTHON_CLIENT'] = 'cuda13'", {"cuda13"}),
        ("# measured on an H100 with AVX512", {"h100", "avx512"}),
        ("options = {'xla_tpu_enable_megacore': True}", {"tpu", "megacore"}),
        ("raise LlvmError", {"llvm"}),
        ("kanawa plan llama2-7b --on v5p-512,h100-256", set()),
        ("the v5p has two cores", {"v5p"}),
        ("input_shape, output, neural, simple, v500", set()),
    ],
)
def test_a_word_of_hardware_is_seen_wherever_it_stands(text, words):
    assert words_in(text) == words
