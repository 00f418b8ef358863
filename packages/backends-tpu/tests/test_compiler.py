"""Options differ by purpose."""

from kanawa.composition.target import parse_target
from kanawa_backends_tpu.plugin import BACKEND


def test_training_asks_for_more_than_decoding():
    device = parse_target("v5p-8").device
    train = BACKEND.kanawa_compiler_options(device, "train")
    decode = BACKEND.kanawa_compiler_options(device, "decode")
    assert set(decode) < set(train)


def test_fusions_get_more_on_chip_memory_where_it_was_seen_to_pay():
    """The compiler's own 16 MiB leaves v5p's matmuls at 81 % of peak; v4 and v5e are left alone."""
    devices = {name: parse_target(f"{name}-8").device for name in ("v4", "v5p")}
    options = {name: BACKEND.kanawa_compiler_options(device, "train") for name, device in devices.items()}
    assert options["v5p"]["xla_tpu_scoped_vmem_limit_kib"] == 64 * 1024
    assert "xla_tpu_scoped_vmem_limit_kib" not in options["v4"]


def test_sparse_cores_gather_where_matmuls_no_longer_may(monkeypatch):
    """From libtpu 0.0.48 on v5p refuses gathers inside matmuls, which then stand alone, and still."""
    device = parse_target("v5p-8").device
    fused = "xla_tpu_enable_async_collective_fusion"
    offloaded = "xla_tpu_enable_sparse_core_collective_offload_all_gather"
    for release, option, other in (((0, 0, 42), fused, offloaded), ((0, 0, 52), offloaded, fused)):
        monkeypatch.setattr("kanawa_backends_tpu.compiler.release_of", lambda _, release=release: release)
        options = BACKEND.kanawa_compiler_options(device, "train")
        assert option in options and other not in options
