"""The page on kernels says what the installed kernels take now."""

import os
from pathlib import Path

import pytest
from kanawa_backends_cpu.kernels.attention import flash
from kanawa_backends_cpu.kernels.matmul import available, dots
from kanawa_backends_cpu.processor import Processor
from kernel_features import as_markdown, feature_tables

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "kernel-features.md"
BEGIN, END = "<!-- generated: kernel features -->", "<!-- end generated: kernel features -->"


#: The processor that the page is about, whichever runs the test: AVX-512 with products of bfloat16, and no AMX.
PROCESSOR = Processor("x86_64", frozenset({"avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_bf16"}))


@pytest.fixture(scope="module")
def tables():
    with pytest.MonkeyPatch.context() as patch:
        for module in (available, dots, flash):
            patch.setattr(module, "processor", lambda: PROCESSOR)
        patch.setattr(flash, "cores", lambda: 2)
        patch.setattr(dots, "has_bf16_pairs", lambda: True)
        return feature_tables()


def test_the_page_holds_the_tables_of_the_installed_kernels(tables):
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    shown, end, after = rest.partition(END)
    now = as_markdown(tables)
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(f"{before}{begin}\n\n{now}\n\n{end}{after}", encoding="utf-8")
        shown = now
    stale = [line for line in now.splitlines() if line not in shown.splitlines()]
    assert shown.strip() == now, "run this test with UPDATE_GOLDEN=1; the page lacks:\n" + "\n".join(stale)


def test_packed_rows_wide_heads_and_sinks_have_a_kernel_on_a_gpu(tables):
    (table,) = (each for each in tables if each.operation == "attention")
    asked = ("packed segments", "packed, sliding window", "head dim 256", "sinks", "packed, head dim 256, sinks")
    assert {table.chosen[f"training, {label}"]["gpu"] for label in asked}.isdisjoint({"reference"})
