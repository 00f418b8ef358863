"""Options differ by purpose."""

from kanawa.composition.target import parse_target
from kanawa_backends_gpu.plugin import BACKEND


def test_training_asks_for_more_than_decoding():
    device = parse_target("h100").device
    train = BACKEND.kanawa_compiler_options(device, "train")
    decode = BACKEND.kanawa_compiler_options(device, "decode")
    assert set(decode) < set(train)
