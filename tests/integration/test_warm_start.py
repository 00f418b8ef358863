"""The second start of training on a single CPU takes its step from the compile cache, native matmuls included."""

import json
import os
import subprocess
import sys

import pytest
from kanawa_backends_cpu.kernels.matmul.available import why_no_native

TOKENS = (
    *("--steps", "2", "--set", "sample_prompt=None", "--set", "evaluation.final_batches=1"),
    *("--set", "data=random-tokens", "--set", "data.vocab_size=2048"),
)
#: The quickstart's own step.
WHOLE = (*TOKENS, "--set", "data.sequence_length=256")
#: A step of one layer, its matmuls in bfloat16: large enough that none of them is XLA's.
SMALL = (
    *(*TOKENS, "--set", "data.sequence_length=128", "--set", "batch_size=2"),
    *("--set", "precision.compute=bfloat16", "--set", "model.stack.num_layers=1"),
)


@pytest.mark.skipif(why_no_native() is not None, reason="without native matmuls no cache stores a step")
@pytest.mark.parametrize("options", [SMALL, pytest.param(WHOLE, marks=pytest.mark.nightly)], ids=["small", "whole"])
def test_a_warm_start_on_one_cpu_compiles_the_step_no_time(tmp_path, options):
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    told = []
    for name in ("cold", "warm"):
        command = [sys.executable, "-m", "kanawa.cli", "train", "quickstart", "--run", str(tmp_path / name), *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "bad_alloc" not in done.stderr
        events = [json.loads(line) for line in (tmp_path / name / "events.jsonl").read_text().splitlines()]
        (program,) = [event for event in events if event["event"] == "program"]
        told.append((program["from_cache"], [event["loss"] for event in events if event["event"] == "step"]))
    (cold_kept, cold), (warm_kept, warm) = told
    assert (cold_kept, warm_kept) == (False, True)
    assert len(cold) == 2 and warm == cold
