"""`kanawa plan --serve`: cache pages and tokens a second, against arithmetic by hand."""

import json

import pytest
from kanawa.cli.main import main


@pytest.fixture(scope="module", params=["v5p-8", "h100-8"])
def plan(request):
    from io import StringIO
    from unittest import mock

    with mock.patch("sys.stdout", StringIO()) as out:
        assert main(["plan", "llama2-7b", "--on", request.param, "--serve", "--quick", "--json"]) == 0
    return json.loads(out.getvalue())


def test_pages_fill_what_weights_leave(plan):
    room, devices = plan["serving"], plan["devices"]
    # 6.74 G parameters of 2 bytes; 32 layers of keys and values of 4096, 2 bytes each.
    assert room["weights_per_device_bytes"] == pytest.approx(6.738e9 * 2 / devices, rel=0.01)
    assert room["page_bytes"] == 16 * 32 * 2 * 4096 * 2 and room["sequence_bytes"] == 0
    free = 0.9 * room["memory_limit_bytes"] - room["weights_per_device_bytes"]
    assert room["cache_per_device_bytes"] == pytest.approx(free, abs=1)
    assert room["cache_pages"] == int(free * devices / room["page_bytes"])


def test_steps_follow_the_roofline(plan):
    from kanawa.composition.target import parse_target

    device, room = parse_target(plan["target"]).device, plan["serving"]
    bandwidth = device.memory_bandwidth * plan["devices"] / device.jax_devices_per_chip
    for row in room["rows"]:
        cached = row["batch"] * row["context"] * room["page_bytes"] / 16
        read = (6.738e9 * 2 + cached) / bandwidth
        worked = 2 * 6.6e9 * row["batch"] / (device.peak_flops["bfloat16"] * plan["devices"])
        step = row["step_seconds"] - row["communication_seconds"]
        assert step == pytest.approx(max(read, worked), rel=0.03) or row["binds"] == "compute"
        assert 0 < row["communication_seconds"] < row["step_seconds"]
        assert row["tokens_per_second"] == pytest.approx(row["batch"] / row["step_seconds"])
        assert row["fits"] == (cached <= room["cache_per_device_bytes"] * plan["devices"])
    assert {row["binds"] for row in room["rows"]} >= {"memory"}


def test_matrices_are_split_and_not_gathered(plan):
    assert plan["mesh"] == {"tensor": plan["devices"]}
    assert not any(row["kind"] == "all-gather" and "fsdp" in row["axes"] for row in plan["communication"])


def test_a_person_reads_what_fits(capsys):
    assert main(["plan", "quickstart", "--on", "cpu-8", "--serve", "--quick"]) == 0
    out = capsys.readouterr().out
    assert "pages of 16 tokens" in out and "tokens/s" in out and "by roofline:" in out
