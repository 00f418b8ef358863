"""Which quantised products XLA runs as they are, by chip."""

import dataclasses

import jax
import numpy as np
import pytest
from kanawa_backends_tpu.device import DEVICES
from kanawa_backends_tpu.kernels.quantized_matmul.xla import XlaQuantizedMatmul
from kanawa_kernel_tools.examples.quantized_matmul import BASE, EXAMPLES

SPECS = {device.name: device for device in DEVICES}
FLOAT8 = {"lhs_format": "float8_e4m3fn", "rhs_format": "float8_e4m3fn"}
WEIGHTS = {"lhs_format": "bfloat16", "dtype": "bfloat16"}
TAKEN = [("v5e", {}), ("v5p", {}), ("v6e", {}), ("v7x", FLOAT8), ("v5p", WEIGHTS), ("v7x", WEIGHTS)]
REFUSED = [
    ("v6e", FLOAT8, "v6e have no rate for float8_e4m3fn"),
    ("v7x", {}, "v7x have no rate for int8"),
    ("v5e", {**WEIGHTS, "rhs_format": "int4"}, "weights in int4"),
    ("v5e", {**WEIGHTS, "groups": 4}, "4 groups of scales"),
    ("v5e", {**WEIGHTS, "rhs_format": "float8_e5m2"}, "no rate for float8_e5m2"),
]


@pytest.mark.parametrize("chip, changes", TAKEN)
def test_what_a_chip_takes(chip, changes):
    assert XlaQuantizedMatmul().supports(dataclasses.replace(BASE, **changes), SPECS[chip])


@pytest.mark.parametrize("chip, changes, reason", REFUSED)
def test_refusals_say_why(chip, changes, reason):
    verdict = XlaQuantizedMatmul().supports(dataclasses.replace(BASE, **changes), SPECS[chip])
    assert not verdict
    assert reason in verdict.reason


def test_the_program_has_one_product_of_integers():
    """XLA gives full rate only where both sides reach it as int8: widened before, the product would be of bf16."""
    operands = EXAMPLES.operands(BASE, np.random.default_rng(0))
    text = jax.jit(lambda o: XlaQuantizedMatmul().apply(BASE, o)).lower(operands).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) == 1
    assert "xi8>" in products[0]
    assert "xi32>" in products[0]
