"""The same Llama by transformers and PyTorch, in a process of its own: one training step for each line it is sent.

Run by step_overhead.py with the Python of an environment that has them (`pip install torch transformers`). It prints
one line when it is ready, and one with the seconds of each step.
"""

import json
import sys
import time

import torch
import transformers


def main() -> None:
    """Builds the model from the JSON in the first argument and serves steps."""
    shape = json.loads(sys.argv[1])
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=shape["width"],
        intermediate_size=shape["hidden"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        vocab_size=shape["vocab"],
        rms_norm_eps=shape["eps"],
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    model = transformers.LlamaForCausalLM(config)
    model.train()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
    tokens = torch.randint(0, shape["vocab"], (shape["batch"], shape["length"] + 1))
    low = torch.autocast("cpu", torch.bfloat16, enabled=shape["compute"] == "bfloat16")
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    sys.stdout.write(json.dumps(versions) + "\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        started = time.perf_counter()
        with low:
            logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        sys.stdout.write(f"{time.perf_counter() - started} {loss.item()}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
