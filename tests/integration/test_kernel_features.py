"""The page on kernels says what the installed kernels take now."""

from pathlib import Path

from kanawa_kernel_tools.commands.features import BEGIN, END, as_markdown
from kanawa_kernel_tools.features.tables import feature_tables

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "kernel-features.md"


def test_the_page_holds_the_tables_of_the_installed_kernels():
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()
    now = as_markdown(feature_tables())
    stale = [line for line in now.splitlines() if line not in shown.splitlines()]
    command = f"kanawa kernels --features --into {PAGE.relative_to(PAGE.parents[2])}"
    assert shown == now, f"run `{command}`; it lacks:\n" + "\n".join(stale)


def test_packed_rows_wide_heads_and_sinks_have_a_kernel_on_a_gpu():
    (table,) = (each for each in feature_tables() if each.operation == "attention")
    asked = ("packed segments", "packed, sliding window", "head dim 256", "sinks", "packed, head dim 256, sinks")
    assert {table.chosen[f"training, {label}"]["gpu"] for label in asked}.isdisjoint({"reference"})
