"""Options differ by purpose."""

from kanawa.composition.target import parse_target
from kanawa_backends_gpu import plugin


def test_training_asks_for_more_than_decoding():
    device = parse_target("h100").device
    train = plugin.kanawa_compiler_options(device, "train")
    decode = plugin.kanawa_compiler_options(device, "decode")
    assert set(decode) < set(train)
