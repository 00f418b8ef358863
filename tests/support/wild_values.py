"""Values that somebody may give where a config wants another, for fuzzers."""

import json

from hypothesis import strategies as st

# What has gone wrong before, and what means something to some field.
KNOWN = [
    "-6", "0", "1", "2147483648", "9" * 400, "9" * 5_000, "0x" + "f" * 5_000, "1e400", "nan", "-inf", "1e30", "0.5",
    "null", "true", "", "x", "rms-norm", "adamw", "gelu", "os:system", "[]", "{}", "[-1]", "[[1]]", '{"fsdp": 0}',
    "[" * 3_000, "REQUIRED", "FROM_PARENT", '{"$type": 5}', '{"$enum": "os:system"}', '{"$callable": "kanawa:compose"}',
    '{"$call": "kanawa:compose"}', '{"$type": "kanawa:Config"}', '{"$tuple": [1]}', '{"$dict": 1}',
]  # fmt: skip
NUMBERS = st.one_of(st.integers(-(2**70), 2**70), st.integers(-3, 3), st.floats()).map(str)
DATA = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=4), lambda d: st.lists(d, max_size=2))
TAGS = st.sampled_from(["$type", "$call", "$callable", "$enum", "$tuple", "$dict", "$float", "$unset", "$x"])
TEXTS = st.one_of(
    st.sampled_from(KNOWN), NUMBERS, st.text(max_size=12), st.one_of(DATA, st.dictionaries(TAGS, DATA)).map(json.dumps)
)
