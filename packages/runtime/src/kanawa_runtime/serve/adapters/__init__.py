"""LoRA adapters of a served model: read from folders, kept side by side, added and removed while requests run."""
