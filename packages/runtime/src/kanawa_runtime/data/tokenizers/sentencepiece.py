"""SentencePiece's `tokenizer.model` as a `tokenizer.json`, which encodes the same: no further library is needed.

The file is a protocol buffer (sentencepiece_model.proto): pieces with scores and types, and how a text is normalised.
"""

import base64
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

#: Types of pieces.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_UNIGRAM, _BPE = 1, 2
#: Where the file is silent.
_DEFAULT_IDS = {"unk": (40, 0), "bos": (41, 1), "eos": (42, 2), "pad": (43, -1)}
_SPACE = "▁"


class Piece(NamedTuple):
    """A token: its text, how much it is preferred, and its type."""

    text: str
    score: float
    kind: int


class SentencePieceModel(NamedTuple):
    """What a `tokenizer.model` says; `ids` of unk, bos, eos and pad are -1 where it has none."""

    pieces: tuple[Piece, ...]
    algorithm: int
    byte_fallback: bool
    ids: Mapping[str, int]
    charsmap: bytes
    begins_with_space: bool
    joins_spaces: bool


def read_model(content: bytes) -> SentencePieceModel:
    """Returns what a file says; raises ValueError for one that isn't a model, or of a kind that isn't read."""
    pieces: list[Piece] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    try:
        for number, value in _fields(content):
            if number == 1:
                fields = dict(_fields(value))
                score = struct.unpack("<f", fields[2])[0] if 2 in fields else 0.0
                pieces.append(Piece(fields[1].decode(), score, int(fields.get(3, _NORMAL))))
            elif number == 2:
                trainer = dict(_fields(value))
            elif number == 3:
                normalizer = dict(_fields(value))
    except (KeyError, IndexError, struct.error, UnicodeDecodeError, TypeError, AttributeError) as error:
        message = f"it isn't a SentencePiece model ({type(error).__name__}: {error})"
        raise ValueError(message) from error
    if not pieces:
        message = "it isn't a SentencePiece model: it has no pieces"
        raise ValueError(message)
    algorithm = int(trainer.get(3, _UNIGRAM))
    kinds = {piece.kind for piece in pieces}
    # A symbol inside a text would get a space in front of what follows it.
    symbols = _USER_DEFINED in kinds and normalizer.get(3, True)
    if algorithm not in (_UNIGRAM, _BPE) or trainer.get(24) or _UNUSED in kinds or symbols:
        message = (
            "it is a SentencePiece model of a kind that isn't read (words or characters, spaces at the end of words, "
            "unused pieces, or symbols of the user's after a space in front); write tokenizer.json with transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
        raise ValueError(message)
    ids = {name: _signed(trainer.get(field, default)) for name, (field, default) in _DEFAULT_IDS.items()}
    return SentencePieceModel(
        tuple(pieces),
        algorithm,
        bool(trainer.get(35)),
        ids,
        bytes(normalizer.get(2, b"")),
        bool(normalizer.get(3, True)),
        bool(normalizer.get(4, True)),
    )


def library_files(model: SentencePieceModel, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the content of tokenizer.json, and tokenizer_config.json's with the tokens that it doesn't name yet.

    A text begins with the model's begin token unless the settings say `add_bos_token: false`.
    """
    tokens = {name: model.pieces[index].text for name, index in model.ids.items() if 0 <= index < len(model.pieces)}
    named = {f"{name}_token": text for name, text in tokens.items()}
    begins = "bos" in tokens and settings.get("add_bos_token") is not False
    special = (_CONTROL, _UNKNOWN)
    added = [
        {"id": index, "content": piece.text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": piece.kind == _USER_DEFINED, "special": piece.kind in special}
        # Spaces are escaped before symbols of the user's are looked for: one that has any never occurs.
        for index, piece in enumerate(model.pieces)
        if piece.kind in special or (piece.kind == _USER_DEFINED and " " not in piece.text)
    ]  # fmt: skip
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model)},
        "pre_tokenizer": None,
        "post_processor": _begins_with(tokens["bos"], model.ids["bos"]) if begins else None,
        "decoder": {"type": "Sequence", "decoders": _decoders(model)},
        "model": _bpe(model) if model.algorithm == _BPE else _unigram(model),
    }
    return content, {"tokenizer_class": "PreTrainedTokenizerFast", **named, **settings}


def _bpe(model: SentencePieceModel) -> dict[str, Any]:
    """Returns the pieces with merges: the best piece is made first, from any two pieces that it is made of."""
    vocab = {piece.text: index for index, piece in enumerate(model.pieces)}
    merges = []
    for piece in sorted((p for p in model.pieces if p.kind == _NORMAL), key=lambda p: -p.score):
        cuts = ((piece.text[:at], piece.text[at:]) for at in range(1, len(piece.text)))
        found = [(vocab[first], vocab[second]) for first, second in cuts if first in vocab and second in vocab]
        merges += [[model.pieces[first].text, model.pieces[second].text] for first, second in sorted(found)]
    unknown = model.pieces[model.ids["unk"]].text
    return {
        "type": "BPE", "dropout": None, "unk_token": unknown, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": model.byte_fallback, "ignore_merges": False,
        "vocab": vocab, "merges": merges,
    }  # fmt: skip


def _unigram(model: SentencePieceModel) -> dict[str, Any]:
    vocab = [[piece.text, piece.score] for piece in model.pieces]
    return {"type": "Unigram", "unk_id": model.ids["unk"], "vocab": vocab, "byte_fallback": model.byte_fallback}


def _normalizers(model: SentencePieceModel) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    if model.charsmap:
        made.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()})
    if model.joins_spaces:
        made.append({"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""})
        made.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if model.begins_with_space:
        made.append({"type": "Prepend", "prepend": _SPACE})
    return [*made, {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}]


def _decoders(model: SentencePieceModel) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    return [*made, {"type": "Strip", "content": " ", "start": 1, "stop": 0}] if model.begins_with_space else made


def _begins_with(name: str, index: int) -> dict[str, Any]:
    first, second = ({"Sequence": {"id": letter, "type_id": 0}} for letter in "AB")
    mark = {"SpecialToken": {"id": name, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [mark, first],
        "pair": [mark, first, mark, second],
        "special_tokens": {name: {"id": name, "ids": [index], "tokens": [name]}},
    }


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Yields (number, value) of a message's fields: integers, or the bytes of everything else."""
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(content, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            if kind != 2:
                message = f"it isn't a SentencePiece model: wire type {kind} at byte {at}"
                raise ValueError(message)
            size, at = _varint(content, at)
        if at + size > len(content):
            message = f"it is cut off: a field at byte {at} has {size} bytes, and the file {len(content)}"
            raise ValueError(message)
        yield key >> 3, content[at : at + size]
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = content[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
