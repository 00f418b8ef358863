"""What others published of these experiments: seconds of a training step, which plans are held against."""

from kanawa.plugins import PublishedStep

_PAPER = "AXLearn (MLSys 2026), tables of end-to-end training"
_STEPS = (
    ("llama2-7b", "v5p-512", 2.5),
    ("llama2-70b", "v5p-1024", 11.6),
    ("llama2-7b", "h100-256", 1.4),
    ("llama2-70b", "h100-512", 9.2),
    ("qwen3-30b-a3b", "v5p-1024", 12.86),
    ("qwen3-30b-a3b", "b200-512", 4.31),
    ("llama2-7b", "trn2-1024", 1.2),
    ("llama2-70b", "trn2-1024", 11.2),
)
_RECIPES = "AI-Hypercomputer's training recipes, Ironwood: 64 chips, 32 videos of 75,600 tokens"
PUBLISHED = (
    *(
        PublishedStep(experiment=experiment, target=target, seconds=seconds, source=_PAPER)
        for experiment, target, seconds in _STEPS
    ),
    PublishedStep(experiment="wan2.1-14b", target="v7x-128", seconds=24.58, source=_RECIPES),
)
