"""The tables of a page of the docs: what `supports` says, by feature and by platform."""

import pytest
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.kernels.grouped_matmul import ReferenceGroupedMatmul
from kanawa.kernels.verdict import first_refusal
from kernel_features import feature_tables


class Training(ReferenceAttention):
    name = "attention.gpu.training"
    takes = frozenset({"alibi"})

    def supports(self, problem, device):
        return first_refusal(
            (problem.mode != "train", "it only trains"),
            (problem.has_sinks, "sinks are given"),
            (problem.head_dim > 128, f"head_dim {problem.head_dim} is over 128"),
            (problem.q_length % 64 != 0, f"length {problem.q_length} isn't a multiple of 64"),
            (problem.dtype == "float32", "dtype float32"),
        )


class Pages(ReferenceAttention):
    name = "attention.tpu.pages"
    takes = frozenset()

    def supports(self, problem, device):
        return first_refusal(
            (not problem.paged or problem.page_size % 128 != 0, f"pages of {problem.page_size}"),
            (device is not None and device.platform != "tpu", "not a TPU"),
        )


class Packed(ReferenceAttention):
    name = "attention.gpu.packed"

    def supports(self, problem, device):
        return first_refusal((not problem.mask.segments or problem.mask.prefix, "rows aren't packed"))


class Few(ReferenceGroupedMatmul):
    name = "grouped_matmul.gpu.few"

    def supports(self, problem, device):
        return first_refusal((problem.groups > 4 or problem.rows % 128 != 0, "too many groups, or odd rows"))


@pytest.fixture
def tables(install):
    here = {cls.name: f"{__name__}:{cls.__name__}" for cls in (Training, Pages, Packed, Few)}
    install(kanawa={}, other=here)
    return {table.operation: table for table in feature_tables()}


def test_cells_say_what_supports_says(tables):
    table = tables["attention"]
    assert table.kernels == ("attention.gpu.packed", "attention.gpu.training", "attention.tpu.pages")
    cells = {label: row[1:] for label, row in table.rows.items()}
    packed = {label: row[0] for label, row in table.rows.items()}
    assert packed["causal"] == packed["sinks"] == "packed rows" and packed["packed segments"] == "yes"
    assert packed["prefix"] == "no" and packed["gradient"] == "yes" and packed["decode, pages"] == "no"
    assert cells["dtype"] == ("bfloat16, float16", "float32, bfloat16, float16")
    assert cells["head dim"] == ("64, 80, 96, 128", "64 to 256")
    assert cells["length"] == ("multiples of 64", "whole pages")
    assert cells["gradient"] == ("yes", "no") and cells["decode, pages"] == ("no", "yes")
    assert cells["sinks"] == ("no", "yes") and cells["ALiBi"] == ("yes", "no") and cells["dropout"] == ("no", "–")
    assert cells["packed segments"] == ("yes", "–")


def test_the_platforms_kernels_and_what_is_left_to_the_reference(tables):
    chosen = tables["attention"].chosen
    assert chosen["training, causal"]["gpu"] == "training" and chosen["training, causal"]["tpu"] == "reference"
    assert chosen["training, head dim 256"] == dict.fromkeys(("gpu", "tpu", "neuron", "cpu"), "reference")
    rows = tables["grouped_matmul"].rows
    assert rows["groups"] == ("4, 1, 2",) and rows["rows"] == ("256, 512, 128, 384",) and rows["inner"] == ("all",)
