"""Without `--on` a served model takes all devices where that divides its weights; else a warning says why not."""

import jax
import kanawa as kn
import pytest
from kanawa_runtime.runs import open_run


@pytest.fixture
def chosen(monkeypatch, tmp_path):
    """Returns a function from an experiment and this machine's devices to the target that a server takes."""
    monkeypatch.setenv("KANAWA_CACHE", str(tmp_path))
    monkeypatch.setattr(jax, "local_device_count", lambda: 8)

    def target(experiment, here, *modifiers):
        monkeypatch.setattr(open_run, "local_target", lambda: here)
        return open_run._all_devices(kn.compose(experiment).config.clone(), modifiers, ())

    return target


def test_a_large_model_is_split_over_all_and_a_small_one_is_not(chosen, caplog):
    assert chosen("llama3.1-8b", "h100-8") == "h100-8" and not caplog.text
    assert chosen("quickstart", "h100-8") is None
    assert "one of 8 devices serves, for copies on the others gain nothing: data 8: " in caplog.text


def test_a_divided_machine_and_a_mesh_of_the_user_are_left_alone(chosen, caplog):
    assert chosen("llama3.1-8b", "cpu-8") is None and chosen("llama3.1-8b", None) is None
    assert chosen("llama3.1-8b", "h100-8", 'mesh:axes={"fsdp":8}') is None and not caplog.text
