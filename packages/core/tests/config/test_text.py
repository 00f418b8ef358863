"""The flat dump is complete, sorted and the same in every process."""

import enum
import math
import subprocess
import sys
from typing import Any

from kanawa.config import FROM_PARENT, Config, Configurable, to_text


class Mode(enum.Enum):
    FAST = 1


class Norm(Configurable):
    class Config(Configurable.Config):
        input_dim: int = FROM_PARENT
        eps: float = 1e-6


class Model(Configurable):
    class Config(Configurable.Config):
        width: int
        name: str = "it's\n"
        layers: tuple[Norm.Config, ...] = tuple(Norm.Config() for _ in range(11))
        mode: Mode = Mode.FAST
        act: Any = math.sqrt
        mesh: dict[str, int] = {"data": -1, "model": 2}
        one: tuple[int, ...] = (1,)
        empty: list[int] = []
        on: bool = True
        nothing: None = None


def test_dump() -> None:
    cfg = Model.Config(layers=[Norm.Config(eps=2)])
    assert to_text(cfg) == (
        f".: {__name__}:Model\n"
        "act: math:sqrt\n"
        "empty: []\n"
        f"layers[0]: {__name__}:Norm\n"
        "layers[0].eps: 2.0\n"
        "layers[0].input_dim: FROM_PARENT\n"
        "mesh: {'data': -1, 'model': 2}\n"
        "mode: Mode.FAST\n"
        'name: "it\'s\\n"\n'
        "nothing: None\n"
        "on: True\n"
        "one: (1,)\n"
        "width: REQUIRED\n"
    )


def test_positions_sort_as_numbers() -> None:
    lines = [line for line in to_text(Model.Config()).splitlines() if line.endswith(":Norm")]
    assert [line.partition(":")[0] for line in lines] == [f"layers[{i}]" for i in range(11)]


def test_plain_records_show_their_own_class() -> None:
    class Plain(Config):
        x: int = 1

    assert to_text(Plain()).startswith(f".: {__name__}:test_plain_records")


SCRIPT = """
import sys
import kanawa.config
standard = sys.stdlib_module_names | {"kanawa", "__main__"}
other = {m.partition(".")[0] for m in set(sys.modules) - before} - standard
print(sorted(m for m in other if not m.startswith("_")))
"""


def test_importing_the_config_loads_no_third_party_module() -> None:
    script = "import sys; before = set(sys.modules)\n" + SCRIPT
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "[]"
