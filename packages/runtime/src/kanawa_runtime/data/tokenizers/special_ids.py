"""The ids that every tokenizer of ours has before any learned one: the bytes, and three special ids."""

#: Ids 0 to 255 are the bytes themselves; the special ids follow, and learned tokens come after those.
PAD_ID, BOS_ID, EOS_ID = 256, 257, 258
FIRST_LEARNED_ID = 259

#: Names for our special ids that no text is likely to hold: written out in a text, other libraries take them for it.
SPECIAL = {PAD_ID: "<|kanawa-pad|>", BOS_ID: "<|kanawa-begin|>", EOS_ID: "<|kanawa-end|>"}

BASE_TOKENS: tuple[bytes, ...] = tuple(bytes([i]) for i in range(256)) + (b"", b"", b"")
