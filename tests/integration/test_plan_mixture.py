"""A plan counts the experts' matmuls as the model does: forward, again where it is recomputed, and two gradients."""

import pytest
from kanawa.composition.experiment import compose
from kanawa_parallel.plan.quick.estimate import estimated

ROWS, LENGTH, TOP_K, LAYERS = 16, 256, 2, 2
#: By the second mesh rows are exchanged: a shard has room for more than it is expected to receive.
CASES = ['{"fsdp":4}', pytest.param('{"fsdp":2,"expert":2}', marks=pytest.mark.nightly)]


@pytest.mark.parametrize("mesh", CASES)
def test_experts_flops_and_traffic_are_the_formulas(mesh):
    sizes = [f"model.stack.num_layers={LAYERS}", f"batch_size={ROWS}", f"data.sequence_length={LENGTH}"]
    asked = [f"mesh:axes={mesh}", "remat:policy=full", "accumulate:microbatches=2"]
    composition = compose("mixtral-8x7b", "v5p-8", asked, sizes)
    estimate = estimated(composition, "train_step")
    mixture = composition.config.model.stack.layer.feed_forward
    found = sum(work.flops for work in estimate.times.work if "experts" in work.path and "megablox" in work.path)
    # Three products of 2 FLOPs a weight: forward twice, and the gradients of rows and of matrices.
    products = 4 * 3 * 2 * 4096 * mixture.hidden_dim
    assert found * 4 == pytest.approx(ROWS * LENGTH * TOP_K * LAYERS * products, rel=2e-3)
    # Weights cross the links in bf16: gathered in both passes of each microbatch, gradients scattered once.
    if "expert" not in mesh:
        numbers = 3 * mixture.num_experts * 4096 * mixture.hidden_dim * LAYERS
        sent = dict.fromkeys(("all-gather", "reduce-scatter"), 0.0)
        for item in estimate.times.sent:
            if item.kind in sent:
                sent[item.kind] += item.bytes
        assert sent["all-gather"] == pytest.approx(2 * 2 * 2 * numbers * 3 / 4, rel=0.15)
        assert sent["reduce-scatter"] == pytest.approx(2 * 2 * numbers * 3 / 4, rel=0.15)
    else:
        rows = (item for item in estimate.times.sent if (item.kind, item.axes) == ("all-to-all", ("expert",)))
        exchanged = sum(item.bytes for item in rows)
        # There and back, forward, recomputed and backward: half of a shard's rows leave it.
        assert exchanged == pytest.approx(6 * ROWS * LENGTH * TOP_K / 4 * 4096 * 2 / 2 * LAYERS, rel=0.05)
