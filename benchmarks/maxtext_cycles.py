"""Compiles MaxText's train step for the pods of the headline workloads and sums its cycles as `kanawa plan` sums ours.

Run: `python benchmarks/maxtext_cycles.py --python MAXTEXT/bin/python --only llama2-70b:all-but-one`. MaxText is no
dependency of ours and lives in an environment of its own (Python 3.12; nothing runs, no accelerator is needed):

    uv venv MAXTEXT && uv pip install --python MAXTEXT --no-deps maxtext==0.2.5
    uv pip install --python MAXTEXT --no-deps -r REQUIREMENTS "jax==0.11.2" "jaxlib==0.11.2" "libtpu==0.0.52"
    uv pip install --python MAXTEXT fastapi uvicorn httpx2 "typeguard==2.13.3" "jax==0.11.2"

where REQUIREMENTS are MaxText's `decoupled-requirements.txt` without the packages of CUDA and of development.
Prints one JSON object a program; `results/maxtext.json` keeps those worth comparing with, and plan_headlines reads it.
"""

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kanawa.composition.target import parse_target
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.cost.machine import Machine
from kanawa_parallel.plan.cost.timing import Timing
from kanawa_parallel.plan.read.hlo import parse_module

#: What every program is compiled with: the flags of MaxText's own v5p recipes but those that libtpu from 0.0.48 on
#: refuses on v5p (fused gathers).
FLAGS = (
    *("--xla_tpu_megacore_fusion_allow_ags=false", "--xla_enable_async_collective_permute=true"),
    *("--xla_tpu_enable_data_parallel_all_reduce_opt=true", "--xla_tpu_data_parallel_opt_different_sized_ops=true"),
    *("--xla_tpu_overlap_compute_collective_tc=true", "--xla_enable_async_all_gather=true"),
)
_KEPT = ("decoder_layer_input", "context", "query_proj", "key_proj", "value_proj", "out_proj", "mlpwi_0")
#: Runs MaxText's own command line. The one option that it can't pass is a boolean of XLA's: it passes text.
_COMPILE = """
from absl import app
from maxtext.trainers.pre_train import train_compile
from maxtext.utils import max_utils
read = max_utils.parse_libtpu_flags_to_dict
max_utils.parse_libtpu_flags_to_dict = lambda flags: {**read(flags), "xla_dump_hlo_as_text": True}
app.run(train_compile.main)
"""
_VERSIONS = """
import importlib.metadata, json
print(json.dumps({name: importlib.metadata.version(name) for name in ("maxtext", "jax", "libtpu")}))
"""


@dataclasses.dataclass(frozen=True)
class Step:
    """A train step of MaxText's: its model, topology, rows a device, and what its backward pass keeps."""

    experiment: str
    target: str
    rows: int
    policy: str
    arguments: tuple[str, ...]


#: MaxText's own policies that keep most and fit, for the batch of our experiments.
STEPS = {
    "llama2-7b:minimal-with-context": Step(
        "llama2-7b", "v5p-512", 4, "minimal_with_context", ("remat_policy=minimal_with_context",)
    ),
    "llama2-70b:all-but-one": Step(
        "llama2-70b",
        "v5p-1024",
        2,
        "custom: all but one MLP input",
        ("remat_policy=custom", *(f"{name}=device" for name in _KEPT)),
    ),
}


def compiled(python: str, step: Step, folder: Path, flags: tuple[str, ...]) -> str:
    """Compiles a step into `folder` and returns what MaxText printed; raises CalledProcessError with it."""
    base = subprocess.run(
        [python, "-c", "import maxtext, pathlib; print(pathlib.Path(maxtext.__file__).parent)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    options = " ".join((f"--xla_dump_to={folder}", *flags))
    command = [
        *(python, "-c", _COMPILE, f"{base}/configs/base.yml", f"model_name={step.experiment}"),
        *(f"compile_topology={step.target}", "compile_topology_num_slices=1", f"per_device_batch_size={step.rows}"),
        *("max_target_length=4096", "enable_checkpointing=false", "dataset_type=synthetic", "use_iota_embed=true"),
        *(f"base_output_directory={folder}", "run_name=compile", f"compile_xla_flags={options}"),
        *(f"tokenizer_path={base}/assets/tokenizers/tokenizer.llama2", *step.arguments),
    ]
    # DECOUPLE_GCLOUD is MaxText's own switch for machines without Google's cloud libraries.
    alone = {"DECOUPLE_GCLOUD": "TRUE", "JAX_PLATFORMS": "cpu", "TPU_WORKER_HOSTNAMES": "localhost"}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **alone, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"},
    )
    return done.stdout


def measured(python: str, step: Step, flags: tuple[str, ...]) -> dict[str, Any]:
    """Returns the record of a step that `results/maxtext.json` keeps."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        printed = compiled(python, step, Path(folder), (*FLAGS, *flags))
        texts = sorted(Path(folder).glob("*.after_codegen.txt"), key=lambda path: path.stat().st_size)
        target = parse_target(step.target)
        machine = Machine(target.device, Links.of_devices(target.device, None, target.jax_devices))
        timing = Timing(parse_module(texts[-1].read_text(encoding="utf-8")), {}, machine)
        total = sum(work.cycles for work in timing.work())
    stated = re.search(r"temp_size_in_bytes=(\d+)", printed)
    versions = subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True, check=True).stdout
    return {
        "experiment": step.experiment,
        "target": step.target,
        "policy": step.policy,
        "flags": list(flags),
        "cycles": total,
        "temporaries_gib": stated and round(int(stated[1]) / 2**30, 1),
        "versions": json.loads(versions),
        "compile_seconds": round(time.perf_counter() - begin),
    }


def main() -> int:
    """Compiles each step in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="the Python of MaxText's environment; without one nothing is compiled")
    parser.add_argument("--only", action="append", default=[], choices=STEPS)
    parser.add_argument("--flag", action="append", default=[], help="one more flag of the compiler")
    args = parser.parse_args()
    if args.python is None:
        # `nox -s benchmarks` runs every script here, in an environment that MaxText has no place in.
        sys.stderr.write("MaxText isn't compiled: give the Python of its own environment with --python\n")
        return 0
    for name in args.only or STEPS:
        sys.stdout.write(json.dumps(measured(args.python, STEPS[name], tuple(args.flag))) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
