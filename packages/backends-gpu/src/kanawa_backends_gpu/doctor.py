"""What a preflight can say about NVIDIA GPUs without touching one."""

from pathlib import Path

from kanawa.plugins import Finding


def findings() -> list[Finding]:
    """Returns whether a GPU here would be used, and whether GPU targets can be compiled."""
    from kanawa_backends_gpu.topology import missing_wheels

    missing = missing_wheels()
    has_gpu = Path("/dev/nvidiactl").exists()
    if has_gpu and "jax-cuda13-plugin" in missing:
        message = "this machine has an NVIDIA driver but JAX has no CUDA plugin: JAX uses the CPU"
        return [Finding("error", "gpu", message, 'pip install "kanawa-backends-gpu[cuda]"')]
    if missing:
        message = f"plans for GPU targets can't be compiled; not installed: {', '.join(missing)}"
        return [Finding("warning", "gpu", message, 'pip install "kanawa-backends-gpu[compile]"')]
    return [Finding("ok", "gpu", "the GPU compiler is installed: GPU targets can be compiled")]
