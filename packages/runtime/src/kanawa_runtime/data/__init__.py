"""From text on disk to rows of tokens: corpora, tokenizers, packing, sources and the loader."""
