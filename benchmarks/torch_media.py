"""A vision or speech model by transformers or diffusers and PyTorch: one training step for each line it is sent.

Run by media_step_beside_torch.py with the Python of an environment that has them. It prints one line when it is ready,
and one with the wall and the processor time of each step, in seconds, and the loss.

Modes are words joined by "+": `compile` (torch.compile), and one of `float32`, `autocast` (parameters stay in float32)
and `bfloat16` (parameters too).
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

Shape = dict[str, Any]
Loss = Callable[[Any], torch.Tensor]


def vit(shape: Shape) -> tuple[torch.nn.Module, Loss]:
    """Returns transformers' ViT and the loss of a batch."""
    import transformers

    config = transformers.ViTConfig(
        num_hidden_layers=shape["layers"],
        hidden_size=shape["width"],
        num_attention_heads=shape["heads"],
        intermediate_size=4 * shape["width"],
        image_size=shape["image"],
        patch_size=shape["patch"],
        num_labels=shape["classes"],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = transformers.ViTForImageClassification(config).to(memory_format=torch.channels_last)
    images = torch.randn(shape["batch"], 3, shape["image"], shape["image"]).to(memory_format=torch.channels_last)
    targets = torch.randint(0, shape["classes"], (shape["batch"],))

    def loss(run: Any) -> torch.Tensor:
        logits = run(pixel_values=images.to(model.dtype)).logits
        return torch.nn.functional.cross_entropy(logits.float(), targets)

    return model, loss


def whisper(shape: Shape) -> tuple[torch.nn.Module, Loss]:
    """Returns transformers' Whisper and the loss of a batch, whose features are at hand."""
    import transformers

    config = transformers.WhisperConfig(
        encoder_layers=shape["layers"],
        decoder_layers=shape["layers"],
        d_model=shape["width"],
        encoder_attention_heads=shape["heads"],
        decoder_attention_heads=shape["heads"],
        encoder_ffn_dim=4 * shape["width"],
        decoder_ffn_dim=4 * shape["width"],
        dropout=0.0,
        use_cache=False,
    )
    model = transformers.WhisperForConditionalGeneration(config)
    features = torch.randn(shape["batch"], config.num_mel_bins, 3000)
    ids = torch.randint(0, 50_000, (shape["batch"], shape["length"] + 1))

    def loss(run: Any) -> torch.Tensor:
        logits = run(input_features=features.to(model.dtype), decoder_input_ids=ids[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())

    return model, loss


def dit(shape: Shape) -> tuple[torch.nn.Module, Loss]:
    """Returns diffusers' DiT and the loss of a batch; all blocks share one embedder, as in the paper."""
    import diffusers

    model = diffusers.DiTTransformer2DModel(
        num_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        attention_head_dim=shape["width"] // shape["heads"],
        sample_size=shape["image"],
        in_channels=4,
        out_channels=4,
        patch_size=2,
    )
    embedder = model.transformer_blocks[0].norm1.emb
    for block in model.transformer_blocks:
        block.norm1.emb = embedder
    latents = torch.randn(shape["batch"], 4, shape["image"], shape["image"])
    labels = torch.randint(0, 1000, (shape["batch"],))

    def loss(run: Any) -> torch.Tensor:
        times = torch.randint(0, 1000, (shape["batch"],))
        noise = torch.randn_like(latents)
        level = (times / 1000)[:, None, None, None]
        noisy = (1 - level**2).sqrt() * latents + level * noise
        found = run(noisy.to(model.dtype), timestep=times, class_labels=labels, return_dict=False)[0]
        return torch.nn.functional.mse_loss(found.float(), noise)

    return model, loss


MODELS = {"vit": vit, "whisper": whisper, "dit": dit}


def main() -> None:
    """Builds the model that the JSON in the first argument names and serves steps."""
    shape = json.loads(sys.argv[1])
    mode = shape["mode"].split("+")
    torch.manual_seed(0)
    torch.set_num_threads(shape["threads"])
    model, loss = MODELS[shape["model"]](shape)
    model = model.train().to(torch.bfloat16 if "bfloat16" in mode else torch.float32)
    run = torch.compile(model) if "compile" in mode else model
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    others = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
    low = torch.autocast("cpu", torch.bfloat16, enabled="autocast" in mode)

    def step() -> float:
        with low:
            value = loss(run)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(value.item())

    step()
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    sys.stdout.write(json.dumps({"torch": torch.__version__, "parameters": count}) + "\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        begin, busy = time.perf_counter(), time.process_time()
        value = step()
        sys.stdout.write(f"{time.perf_counter() - begin} {time.process_time() - busy} {value}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
