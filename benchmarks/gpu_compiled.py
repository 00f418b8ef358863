"""Compiles every GPU kernel of ours at shapes of real models: the table in docs/results/kernels-compiled.md.

Run where the CUDA wheels are (`pip install "kanawa-backends-gpu[compile]"`); no GPU is needed:
`JAX_PLATFORMS=cpu python benchmarks/gpu_compiled.py --into docs/results/kernels-compiled.md` (`--only`, `--on h100`).
"""

import argparse
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

from kanawa.composition.target import parse_target
from kanawa.plugins import component
from kanawa_backends_gpu.schedule import Compiled, compiled_half, resident_blocks
from kanawa_backends_gpu.target_config import SILICON
from kanawa_backends_gpu.topology import missing_wheels
from kanawa_kernel_tools.schedules.compiled import halves

# Where the shapes lie that the package's tests compile too.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from gpu_shapes import SHAPES, TARGETS, Shape  # noqa: E402

BEGIN, END = "<!-- generated: gpu kernels compiled -->", "<!-- end generated: gpu kernels compiled -->"
HEADER = (
    "| kernel | shape | GPU | call | registers | spilt bytes | shared KiB | blocks an SM | temporaries MiB |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def lines_of(shape: Shape, target: str) -> list[str]:
    """Returns a row of the table for each call of the kernel, forward first."""
    device = parse_target(target).device
    rows = []
    for half in halves(component("kernels", shape.kernel)(), shape.problem, shape.differentiated):
        compiled = compiled_half(half, device)
        start = f"| `{shape.kernel}` | {shape.title} | {target}"
        temporaries = f"{compiled.temporary_bytes / 2**20:.1f} |"
        if not compiled.calls:
            rows.append(f"{start} | {half.direction}: {_made_of(compiled)} | | | | | {temporaries}")
        for name in compiled.calls:
            launch, figures = compiled.launches[name], compiled.assembled[name]
            shared = launch.dynamic_shared_bytes + figures.static_shared_bytes
            blocks = resident_blocks(
                SILICON[device.family], registers=figures.registers, threads=launch.threads, shared_bytes=shared
            )
            told = f"{figures.registers} | {figures.spill_store_bytes} | {shared / 1024:.0f} | {blocks}"
            rows.append(f"{start} | {half.direction}: `{name}` x {launch.threads} threads | {told} | {temporaries}")
    return rows


def _made_of(compiled: Compiled) -> str:
    if compiled.libraries:
        return ", ".join(f"`{name}`" for name in compiled.libraries)
    return "XLA's Triton fusion" if "__triton" in compiled.program else "XLA's own kernels"


def table(only: str, targets: list[str]) -> str:
    """Returns the table of the shapes whose kernel or title has `only` in it."""
    chosen = [shape for shape in SHAPES if only in shape.kernel or only in shape.title]
    rows = [line for shape in chosen for target in targets for line in lines_of(shape, target)]
    compiler = f"Compiled by jaxlib {version('jaxlib')} and ptxas {version('nvidia-cuda-nvcc')}, without a GPU."
    return "\n".join([compiler, "", HEADER, *rows])


def main() -> int:
    """Writes the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a kernel's name or of a shape's title")
    parser.add_argument("--on", default=",".join(TARGETS))
    parser.add_argument("--into", type=Path, help="a page with the two markers, between which the table is replaced")
    args = parser.parse_args()
    missing = missing_wheels()
    if missing:
        sys.stderr.write(f'missing {", ".join(missing)}: pip install "kanawa-backends-gpu[compile]"\n')
        return 2
    # JAX says in every compilation that Pallas will move from Triton to Mosaic GPU.
    warnings.filterwarnings("ignore", message="The Pallas Triton backend is deprecated")
    text = table(args.only, args.on.split(","))
    if args.into is None:
        sys.stdout.write(text + "\n")
        return 0
    page = args.into.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        sys.stderr.write(f"{args.into} lacks {BEGIN} or {END}\n")
        return 2
    args.into.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
