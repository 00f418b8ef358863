"""Small tokenizers as models come with them, made by the `tokenizers` library: one of each kind in use."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = [
    "The quick brown fox jumps over the lazy dog. Zwölf Boxkämpfer jagen Viktor quer über den Sylter Deich.",
    "def function(name: str) -> int:\n    return len(name) + 42\n",
    "日本語のテキスト、そして絵文字 🎉🎉 café",
] * 20


def byte_level(vocab_size: int = 400, words: Iterable[str] = TEXT) -> Tokenizer:
    """GPT-2's and Llama 3's kind: pieces by an expression, then bytes."""
    made = Tokenizer(models.BPE())
    cut = pre_tokenizers.Split(Regex(r"\p{L}+| ?\p{N}{1,3}|[^\p{L}\p{N}]+"), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([cut, as_bytes])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|begin|>", "<|end|>", "<|turn|>"]
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet)
    made.train_from_iterator(words, trainer)
    begin = ("<|begin|>", made.token_to_id("<|begin|>"))
    made.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[begin])
    return made


def sentence_pieces(vocab_size: int = 400) -> Tokenizer:
    """Llama 2's and Gemma's kind: spaces as ▁, one in front, unknown characters as bytes."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=vocab_size + 256, special_tokens=["<unk>", "<s>", "</s>", *bytes_])
    made.train_from_iterator(TEXT[:2], trainer)
    content = json.loads(made.to_str())
    # Bytes are ordinary tokens of such a model, whatever the trainer needs them to be.
    content["added_tokens"] = [t for t in content["added_tokens"] if not t["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(content))


def unigram() -> Tokenizer:
    """T5's kind: scored pieces, and a normaliser that changes the text."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    made.train_from_iterator(TEXT, trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="<unk>"))
    return made


def write_folder(folder: Path, made: Tokenizer, settings: dict[str, object] | None = None) -> Path:
    """Writes tokenizer.json and tokenizer_config.json, as a downloaded model has them."""
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def end_of(name: str) -> dict[str, object]:
    """Returns an end token as tokenizer_config.json writes it."""
    return {"content": name, "lstrip": False, "special": True}


def added(made: Tokenizer, *names: str) -> Tokenizer:
    """Returns the tokenizer with further special tokens at its end."""
    made.add_special_tokens([AddedToken(name, special=True) for name in names])
    return made
