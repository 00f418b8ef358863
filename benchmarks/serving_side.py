"""One side of benchmarks/serving.py, in a process of its own: kanawa's engine, vLLM's, or transformers' generate.

    python serving_side.py kanawa|vllm|transformers FOLDER DTYPE

Prints a line once it is ready, with its versions. For each line of JSON it is sent, {"prompts": [[id, …], …],
"lengths": [n, …]}, it answers all prompts greedily and prints {"seconds": s, "tokens": [[id, …], …]}. Kanawa's side is
also sent {"rows": n, "steps": k, "drawn": false}: what the engine makes of n rows that decode all the time, k tokens a
call, beside its program in a bare loop.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Serve = Callable[[list[list[int]], list[int]], list[list[int]]]

#: What our side measures of itself.
COMPARE: list[Callable[[dict[str, Any]], dict[str, float]]] = []
#: As many sequences at once on every side.
MAX_SEQUENCES = 32
MAX_LENGTH = 2048


def kanawa(folder: str, dtype: str) -> tuple[Serve, dict[str, Any]]:
    """Returns our engine, in process."""
    from kanawa_runtime.process import prepare_process

    prepare_process(serves=True)
    import threading
    from pathlib import Path

    import jax
    from kanawa_runtime.runs.open_run import open_run
    from kanawa_runtime.serve.engine.config import EngineConfig
    from kanawa_runtime.serve.engine.engine import LLMEngine
    from kanawa_runtime.serve.engine.request import Request, SamplingParams

    opened = open_run(Path(folder), overrides=(f"precision.compute={dtype}",))
    # As `kanawa generate --input` has it: nobody reads along, on vLLM's side neither.
    config = EngineConfig(max_sequences=MAX_SEQUENCES, max_length=MAX_LENGTH, prefix_cache=False, fused_steps=16)
    engine = LLMEngine(opened.trainer.model, opened.params, opened.state, opened.environment, config)
    engine.start()
    count = 0

    def serve(prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        nonlocal count
        ended, left = threading.Event(), len(prompts)
        tokens: dict[str, list[int]] = {}

        def on_output(output: Any) -> None:
            nonlocal left
            tokens[output.request_id] += output.token_ids
            left -= output.finish_reason is not None
            if not left:
                ended.set()

        names = []
        for prompt, length in zip(prompts, lengths, strict=True):
            count += 1
            names.append(str(count))
            tokens[names[-1]] = []
            sampling = SamplingParams(max_tokens=length, temperature=0.0)
            engine.submit(Request(id=names[-1], prompt_ids=tuple(prompt), sampling=sampling), on_output)
        ended.wait()
        return [tokens[name] for name in names]

    def compare(case: dict[str, Any]) -> dict[str, float]:
        from engine_overhead import Case, compared

        return compared(engine, Case(**case))

    COMPARE.append(compare)
    return serve, {"jax": jax.__version__, "programs": engine.num_programs}


def vllm(folder: str, dtype: str) -> tuple[Serve, dict[str, Any]]:
    """Returns vLLM's engine, in its own process below this one, as it is used offline."""
    import vllm as library

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    model = library.LLM(
        model=folder, dtype=dtype, skip_tokenizer_init=True, max_model_len=MAX_LENGTH, max_num_seqs=MAX_SEQUENCES,
        enable_prefix_caching=False, disable_log_stats=True,
    )  # fmt: skip

    def serve(prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        sampling = [
            library.SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False)
            for length in lengths
        ]
        return [list(out.outputs[0].token_ids) for out in model.generate(asked, sampling, use_tqdm=False)]

    return serve, {"vllm": library.__version__}


def transformers(folder: str, dtype: str) -> tuple[Serve, dict[str, Any]]:
    """Returns transformers' generate, at most MAX_SEQUENCES prompts at once, padded on the left."""
    import torch
    import transformers as library

    model = library.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def batch(prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        widest = max(map(len, prompts))
        ids = torch.tensor([[0] * (widest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (widest - len(p)) + [1] * len(p) for p in prompts])
        with torch.inference_mode():
            out = model.generate(
                input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=max(lengths), eos_token_id=None,
                pad_token_id=0,
            )  # fmt: skip
        return [row[widest : widest + length] for row, length in zip(out.tolist(), lengths, strict=True)]

    def serve(prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        tokens: list[list[int]] = []
        for start in range(0, len(prompts), MAX_SEQUENCES):
            some = slice(start, start + MAX_SEQUENCES)
            tokens += batch(prompts[some], lengths[some])
        return tokens

    return serve, {"torch": torch.__version__, "transformers": library.__version__}


def main() -> None:
    """Serves what is sent on the standard input."""
    began = time.perf_counter()
    # Libraries print to the standard output as they like: what is ours goes to a copy of it.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    side, folder, dtype = sys.argv[1:4]
    serve, versions = {"kanawa": kanawa, "vllm": vllm, "transformers": transformers}[side](folder, dtype)
    answers.write(json.dumps({"ready": time.perf_counter() - began, "versions": versions}) + "\n")
    for line in sys.stdin:
        asked = json.loads(line)
        if "rows" in asked:
            answers.write(json.dumps(COMPARE[0](asked)) + "\n")
            continue
        started = time.perf_counter()
        tokens = serve(asked["prompts"], asked["lengths"])
        answers.write(json.dumps({"seconds": time.perf_counter() - started, "tokens": tokens}) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main()
