"""The table of compiled TPU kernels: `python tests/support/tpu_compiled.py docs/results/kernels-compiled.md`.

Every kernel at shapes of training and serving, for one device of each generation. A cell holds the program's memory
beside operands and results. Cells of cases that aren't compiled this time (`--on`, `--only`) stay as they are.
"""

import argparse
import dataclasses
import functools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from kanawa.composition.target import Target, parse_target
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.diagonal_recurrence import DiagonalRecurrenceProblem
from kanawa.kernels.grouped_matmul import GroupedMatmulProblem
from kanawa.kernels.masks import CAUSAL, MaskSpec, sliding_window
from kanawa.plugins import component
from kanawa_backends_tpu.schedule.compiled import compiler
from kanawa_backends_tpu.topology import topology

TARGETS = ("v5e-4", "v5p-8", "v6e-4", "v7x-8")
BEGIN, END = "<!-- generated: tpu kernels compiled -->", "<!-- end generated: tpu kernels compiled -->"
_MIB = 2**20

_TRAINED = AttentionProblem(
    batch=1, q_length=4096, kv_length=4096, num_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128,
    dtype="bfloat16", mask=CAUSAL, scale=128**-0.5,
)  # fmt: skip
_SERVED = dataclasses.replace(
    _TRAINED, batch=64, q_length=1, kv_length=2048, mode="decode", has_kv_lengths=True, page_size=16
)
_NARROW: dict[str, Any] = {"head_dim": 64, "v_head_dim": 64, "scale": 0.125}
_PREFILL: dict[str, Any] = {"mode": "prefill", "batch": 4, "q_length": 1024}
_MIXED: dict[str, Any] = {"mode": "prefill", "batch": 1, "q_length": 1024, "ragged_sequences": 64}


@dataclasses.dataclass(frozen=True)
class Case:
    """One row: a kernel of the catalog, what the problem is for, and the problem."""

    kernel: str
    purpose: str
    problem: Any

    @property
    def differentiated(self) -> bool:
        """Whether the backward pass is compiled too."""
        return getattr(self.problem, "mode", "train") == "train" and self.purpose != "decode"


def _paged(purpose: str, **changes: Any) -> Case:
    return Case("attention.tpu.paged", purpose, dataclasses.replace(_SERVED, **changes))


def _experts(purpose: str, rows: int, inner: int, columns: int, groups: int) -> Case:
    dtypes = {"dtype": "bfloat16", "rhs_dtype": "bfloat16"}
    problem = GroupedMatmulProblem(rows=rows, inner=inner, columns=columns, groups=groups, **dtypes)
    return Case("grouped_matmul.tpu.megablox", purpose, problem)


def _trained(**changes: Any) -> Case:
    return Case("attention.tpu.flash", "train", dataclasses.replace(_TRAINED, **changes))


CASES = (
    _trained(),
    _trained(mask=MaskSpec(causal=True, segments=True)),
    _trained(has_alibi=True),
    _trained(dropout_rate=0.1),
    _trained(bias_shape=(1, 32, 4096, 4096)),
    _trained(mask=MaskSpec(causal=True, predicates=("dilated",))),
    _trained(
        **{"mask": MaskSpec(causal=True, segments=True), "has_alibi": True, "dropout_rate": 0.1, "has_sinks": True},
        **{"bias_shape": (1, 32, 4096, 4096), "logit_cap": 30.0},
    ),
    _trained(head_dim=256, v_head_dim=256, num_heads=16, scale=0.0625, logit_cap=50.0, has_sinks=True),
    Case("attention.tpu.splash", "train", _TRAINED),
    Case("attention.tpu.splash", "train", dataclasses.replace(_TRAINED, mask=sliding_window(1024), **_NARROW)),
    _paged("decode"),
    _paged("decode", page_size=128, **_NARROW),
    _paged("decode", page_size=16, **_NARROW),
    _paged("decode, dense", page_size=None, num_kv_heads=1, num_heads=8),
    _paged("prefill", **_PREFILL, has_sinks=True),
    _paged("mixed", **_MIXED),
    _experts("train", 8192, 4096, 14336, 8),
    _experts("decode", 64, 2048, 768, 128),
    Case("diagonal_recurrence.tpu.scan", "train", DiagonalRecurrenceProblem(batch=2, length=4096, channels=2560)),
)


def compiled_bytes(case: Case, target: Target) -> int:
    """Returns the most memory beside operands and results that a direction of the case takes; raises what XLA does.

    Raises AssertionError where the kernel refuses the problem, as no case should be.
    """
    kernel = component("kernels", case.kernel)()
    verdict = kernel.verdict(case.problem, target.device)
    assert verdict, f"{case.kernel} refuses {case.problem.describe()}: {verdict.reason}"
    mesh = Mesh(np.array(topology(target)[:1]), ("one",), axis_types=(AxisType.Auto,))
    whole = NamedSharding(mesh, PartitionSpec())

    def placed(x: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole)

    with jax.set_mesh(mesh):
        programs = [
            jax.jit(half.function).lower(*jax.tree.map(placed, half.arguments)).compile()
            for half in component("kernel_tools", "halves")(kernel, case.problem, case.differentiated)
        ]
    analyses = (program.memory_analysis() for program in programs)
    return max(int(analysis.temp_size_in_bytes) for analysis in analyses if analysis is not None)


def cell(case: Case, target: Target) -> str:
    """Returns what the table says: memory, or the first line of a failure."""
    try:
        return f"{compiled_bytes(case, target) / _MIB:.1f} MiB"
    except (RuntimeError, ValueError, AssertionError) as error:
        return "failed: " + str(error).split("\n", maxsplit=1)[0][:80].replace("|", "/")


def rows(kept: dict[tuple[str, str], list[str]], targets: Sequence[str], only: str) -> Iterator[list[str]]:
    """Yields the table's rows; what isn't compiled now is taken from `kept`."""
    for case in CASES:
        name = [f"`{case.kernel}`", f"{case.purpose}: {case.problem.describe()}"]
        old = kept.get((name[0], name[1]), ["-"] * len(TARGETS))
        make = functools.partial(cell, case)
        yield name + [
            make(parse_target(target)) if target in targets and only in case.kernel else before
            for target, before in zip(TARGETS, old, strict=True)
        ]


def read(text: str) -> dict[tuple[str, str], list[str]]:
    """Returns the cells of a page's table by kernel and problem."""
    lines = text.partition(BEGIN)[2].partition(END)[0].splitlines()
    split = [[part.strip() for part in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return {(parts[0], parts[1]): parts[2:] for parts in split}


def rendered(lines: Sequence[Sequence[str]]) -> str:
    """Returns the block between the markers, markers included."""
    head = ["kernel", "problem", *(target.partition("-")[0] for target in TARGETS)]
    table = [head, ["---"] * len(head), *lines]
    said = f"{compiler()}, jax {jax.__version__}; memory beside operands and results; never run on a chip."
    return "\n".join([BEGIN, said, "", *("| " + " | ".join(line) + " |" for line in table), END])


def main(arguments: Sequence[str]) -> int:
    """Compiles and rewrites the page after each row, so that an interrupted run keeps what it has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--on", default=",".join(TARGETS), help="such as v5p-8,v6e-4")
    parser.add_argument("--only", default="", help="part of a kernel's name")
    given = parser.parse_args(arguments)
    text = given.page.read_text(encoding="utf-8")
    kept = read(text)
    done: list[list[str]] = []
    for row in rows(kept, given.on.split(","), given.only):
        done.append(row)
        rest = list(rows(kept, (), ""))[len(done) :]
        before, _, after = text.partition(BEGIN)
        after = after.partition(END)[2] if BEGIN in text else ""
        block = rendered([*done, *rest])
        page = before + block + after if BEGIN in text else f"{text.rstrip()}\n\n## Compiled for TPUs\n\n{block}\n"
        given.page.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
