"""Models to and from Hugging Face folders: safetensors, config and tokenizer, every tensor accounted for."""
