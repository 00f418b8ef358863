"""Options differ by purpose."""

from sashimono.compose.target import parse_target
from sashimono_backends_tpu import plugin


def test_training_asks_for_more_than_decoding():
    device = parse_target("v5p-8").device
    train = plugin.sashimono_compiler_options(device, "train")
    decode = plugin.sashimono_compiler_options(device, "decode")
    assert set(decode) < set(train)
