"""Makes the HLO texts of these tests anew: `python make_texts.py tpu` with libtpu, `gpu` with the CUDA wheels.

A two-matmul layer, scanned three times, differentiated, with weights sharded over four devices.
"""

import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LAYERS, ROWS, WIDTH, HIDDEN = 3, 64, 256, 512


def loss(weights, x):
    def layer(x, w):
        return x + jnp.tanh(x @ w["up"]) @ w["down"], None

    return jnp.sum(jax.lax.scan(jax.checkpoint(layer), x, weights)[0].astype(jnp.float32))


def step(weights, x):
    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights, x))


def main(platform):
    from kanawa.composition.target import parse_target
    from kanawa.plugins import host

    target = parse_target({"tpu": "v5p-8", "gpu": "h100-4"}[platform])
    (devices,) = [found for _, found in host().collect("kanawa_topology", target=target) if found]
    mesh = Mesh(np.array(devices), ("fsdp",))
    shapes = {"up": (LAYERS, WIDTH, HIDDEN), "down": (LAYERS, HIDDEN, WIDTH)}
    split = NamedSharding(mesh, PartitionSpec(None, "fsdp"))
    weights = {name: jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=split) for name, shape in shapes.items()}
    x = jax.ShapeDtypeStruct((4 * ROWS, WIDTH), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec("fsdp")))
    lowered = jax.jit(step, out_shardings={name: split for name in shapes}, donate_argnums=0).trace(weights, x)
    lowered = lowered.lower(lowering_platforms=({"gpu": "cuda"}.get(platform, platform),))
    with tempfile.TemporaryDirectory() as folder:
        lowered.compile({"xla_dump_to": folder, "xla_dump_hlo_as_text": True})
        from kanawa_parallel.plan.compiled.compilation import read_dump

        names = ("program", "assignment", "live_ranges")
        for name, text in zip(names, read_dump(Path(folder)), strict=True):
            Path(__file__).with_name("texts").joinpath(f"{platform}_{name}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
