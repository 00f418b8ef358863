"""The ids that our tokenizers have before any learned one, and the alphabet in which vocabularies write bytes."""

#: Ids 0 to 255 are the bytes themselves; the special ids follow, and learned tokens come after those.
PAD_ID, BOS_ID, EOS_ID = 256, 257, 258
FIRST_LEARNED_ID = 259

#: Names for our special ids that no text is likely to hold: written out in a text, other libraries take them for it.
SPECIAL = {PAD_ID: "<|kanawa-pad|>", BOS_ID: "<|kanawa-begin|>", EOS_ID: "<|kanawa-end|>"}

BASE_TOKENS: tuple[bytes, ...] = tuple(bytes([i]) for i in range(256)) + (b"", b"", b"")


#: Bytes that are printable characters of Latin-1 stand for themselves; the others take characters from 256 on.
# Left out of Latin-1: 0xA0, a space by another name, and 0xAD, the soft hyphen.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]

CHARACTER_OF: dict[int, str] = {byte: chr(byte) for byte in _PRINTABLE}
CHARACTER_OF |= {byte: chr(256 + index) for index, byte in enumerate(_OTHERS)}
BYTE_OF: dict[str, int] = {character: byte for byte, character in CHARACTER_OF.items()}


def spelled(data: bytes) -> str:
    """Returns the bytes in the alphabet."""
    return "".join(CHARACTER_OF[byte] for byte in data)
