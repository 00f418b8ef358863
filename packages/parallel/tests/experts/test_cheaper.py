"""Tokens travel where there are few of them or much weight, else weights."""

import dataclasses

import pytest
from kanawa.plugins import DeviceSpec
from kanawa_parallel.experts.cheaper import Traffic

#: Eight experts of 4,096 x 14,336 (three matrices) in bf16 over eight shards, 2 of 8 experts a token.
WEIGHTS = 8 * 3 * 4096 * 14336 * 2
DEVICE = DeviceSpec(
    name="abacus",
    platform="abacus",
    peak_flops={"bfloat16": 1e15},
    memory_bytes=2**36,
    memory_bandwidth=1e12,
    link_bandwidth=1e11,
    network_bandwidth=1e10,
    chips_per_host=8,
    source="https://example.com",
)


def traffic(tokens, room=1.5):
    return Traffic(2 * tokens, round(2 * tokens * room), 4096, 2, WEIGHTS, 8)


@pytest.mark.parametrize("device", [None, DEVICE])
@pytest.mark.parametrize(("tokens", "exchanged"), [(4096, True), (262144, False)])
def test_few_tokens_travel_and_for_many_the_weights(device, tokens, exchanged):
    """Weights: 2.5 GB a shard are received. 4,096 tokens: 59 MB there and as much back; 262,144: 3.8 GB each."""
    assert traffic(tokens).exchange_is_cheaper(device) == exchanged


def test_room_that_no_token_fills_costs_memory_bandwidth():
    """At 80,000 tokens sending costs 23 ms and gathering 25: reading and writing much empty room tips it."""
    assert traffic(80_000, room=1.0).exchange_is_cheaper(DEVICE)
    assert not traffic(80_000, room=2.0).exchange_is_cheaper(DEVICE)
    slow = dataclasses.replace(DEVICE, link_bandwidth=1e10)
    assert traffic(80_000, room=2.0).exchange_is_cheaper(slow)
