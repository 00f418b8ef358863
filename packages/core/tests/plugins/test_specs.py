"""Hook specs are the contract with plugins: a golden file holds them, so that a change is seen and reviewed."""

import inspect
import os
import pathlib

from kanawa.plugins import specs

GOLDEN = pathlib.Path(__file__).parent / "golden" / "hook_specs.txt"


def contract():
    """Returns every hook's name, arguments and docstring, in the order of the file."""
    hooks = [hook for name, hook in vars(specs).items() if name.startswith("kanawa_") and inspect.isfunction(hook)]
    return "\n\n".join(f"{hook.__name__}{inspect.signature(hook)}\n{inspect.getdoc(hook)}" for hook in hooks) + "\n"


def test_hook_specs_are_what_plugins_were_written_for():
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(contract())
    assert contract() == GOLDEN.read_text(), f"{GOLDEN.name} differs; if meant, rerun with UPDATE_GOLDEN=1"


def test_every_hook_that_lists_records_is_checked():
    for name in specs.CONTRIBUTIONS:
        assert {*inspect.signature(getattr(specs, name)).parameters} <= {"options", "config", "target", "model"}, name
