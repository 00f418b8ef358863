"""Our tokenizers as the files of a Hugging Face folder: `tokenizer.json` encodes there as it does here, id by id.

The library cuts a text into pieces by an expression over characters, ours is one over bytes. So the text is first
written in the alphabet of bytes, one character each, and the expression translated into that alphabet.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from kanawa_runtime.data.tokenizers.byte_alphabet import BOS_ID, CHARACTER_OF, EOS_ID, PAD_ID, SPECIAL, spelled
from kanawa_runtime.runs.tokenizer_file import TokenizerError


def folder_files(
    tokens: Sequence[bytes], merges: Sequence[tuple[int, int]], pretoken: re.Pattern[bytes], special: Sequence[str] = ()
) -> dict[str, bytes]:
    """Returns tokenizer.json, tokenizer_config.json and generation_config.json.

    `special` are texts with ids of their own after all others, such as the marks of a chat template. Raises
    TokenizerError where two merges make the same bytes, which a vocabulary of texts has no words for, or one of
    `special` is empty, or a token already.
    """
    own = {i: spelled(token) for i, token in enumerate(tokens) if token}
    marked = {**SPECIAL, **{len(tokens) + i: name for i, name in enumerate(special)}}
    taken = [
        name for i, name in enumerate(special) if not name or name in [*own.values(), *SPECIAL.values(), *special[:i]]
    ]
    if taken:
        message = f"the special token {taken[0]!r} is empty, or a token already; take another text, such as <|user|>"
        raise TokenizerError(message)
    names = {**own, **marked}
    vocab = {name: index for index, name in sorted(names.items())}
    if len(vocab) < len(names):
        message = (
            "two merges of this tokenizer make the same bytes, which a tokenizer.json can't say; "
            "train with a tokenizer learned by this version, or convert with --no-tokenizer"
        )
        raise TokenizerError(message)
    model = {"type": "BPE", "vocab": vocab, "merges": [[names[first], names[second]] for first, second in merges]}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(index, name) for index, name in marked.items()],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                # Only for its alphabet; its own regex is GPT-2's, and ours follows.
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
                {"type": "Split", "pattern": {"Regex": translated(pretoken)}, "behavior": "Isolated", "invert": False},
            ],
        },
        "post_processor": _begins(),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": model,
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[BOS_ID],
        "eos_token": SPECIAL[EOS_ID],
        "pad_token": SPECIAL[PAD_ID],
        # Without it transformers takes the spaces before punctuation out of what it decodes.
        "clean_up_tokenization_spaces": False,
        **({"additional_special_tokens": list(special)} if special else {}),
    }
    generation = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
    files = {"tokenizer.json": content, "tokenizer_config.json": settings, "generation_config.json": generation}
    return {name: json.dumps(value, indent=1, ensure_ascii=False).encode() for name, value in files.items()}


def _added(index: int, name: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": name, **flags, "special": True}


def _begins() -> dict[str, Any]:
    """Returns the step that puts our begin token before a text."""
    begin = SPECIAL[BOS_ID]
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    mark = {"SpecialToken": {"id": begin, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [mark, first],
        "pair": [mark, first, second],
        "special_tokens": {begin: {"id": begin, "ids": [BOS_ID], "tokens": [begin]}},
    }


def translated(pattern: re.Pattern[bytes]) -> str:
    r"""Returns an expression over bytes as one over characters of the alphabet, for the library's Oniguruma.

    Knows what `pretokens` is written in: classes of characters, ranges and `\s`, groups without, and bounds. Each
    class is written out as the characters of the bytes it matches, so no engine has a word in what `\s` means.
    """
    out: list[str] = []
    at, source = 0, pattern.pattern
    while at < len(source):
        here = source[at : at + 1]
        if here == b"[":
            end = _class_end(source, at)
            out.append(_class(source[at:end]))
            at = end
        elif here in b"?|{":
            end = source.index(b"}", at) + 1 if here == b"{" else at + 1
            out.append(source[at:end].decode())
            at = end
        else:
            out.append(_class(re.escape(here)))
            at += 1
    return "".join(out)


def _class_end(source: bytes, start: int) -> int:
    at = start + 1
    while source[at : at + 1] != b"]":
        at += 2 if source[at : at + 1] == b"\\" else 1
    return at + 1


def _class(expression: bytes) -> str:
    matcher = re.compile(expression)
    members = [CHARACTER_OF[byte] for byte in range(256) if matcher.fullmatch(bytes([byte]))]
    # Escaped one by one: inside a class `]`, `^`, `-`, `&` and `[` have meanings of their own.
    return "[" + "".join(f"\\x{{{ord(c):x}}}" for c in members) + "]"


def byte_pieces() -> re.Pattern[bytes]:
    """Returns the expression of the byte tokenizer: a piece is a byte."""
    return re.compile(rb"[\x00-\xff]")
