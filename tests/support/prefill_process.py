"""A prefill engine as a process of its own: says its port, and serves until its input ends."""

import sys

import jax
import kanawa as kn
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.serve.disaggregated.prefill_server import PrefillServer
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.engine import LLMEngine

SIZES = {
    "max_sequences": 4, "max_length": 64, "page_size": 4, "prefill_tokens": 16, "num_pages": 40,
    "max_batched_tokens": 32, "batch_sizes": (4,), "page_widths": (16,), "prefill_sizes": (16,), "max_logprobs": 2,
    "transfers_pages": True,
}  # fmt: skip


def model():
    """Returns the model that both processes make, and its parameters."""
    cfg = llama(num_layers=2, input_dim=32, num_heads=4, num_kv_heads=2, hidden_dim=48, vocab_size=50, tied=True)
    built = cfg.build()
    return built, jax.jit(lambda key: kn.initialize(built, key))(jax.random.key(0))


if __name__ == "__main__":
    engine = LLMEngine(*model(), config=EngineConfig(**SIZES))
    engine.start()
    server = PrefillServer(engine, sys.argv[1].encode())
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()
    engine.stop()
    engine.check_pages()
    sys.stdout.write(f"held {len(engine.held_pages())}\n")
