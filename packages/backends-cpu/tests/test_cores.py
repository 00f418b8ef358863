"""How many cores a process may use, by its affinity and its control groups of either version."""

import os
import subprocess
import sys

import pytest
from kanawa_backends_cpu import processor as counting

ASK = "from kanawa_backends_cpu.processor import cores; print(cores())"


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Writes the process's groups and their files, and lets it run on eight cores."""
    monkeypatch.setattr(counting, "_GROUPS", tmp_path)
    monkeypatch.setattr(counting, "_OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)

    def write(own, **files):
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            place = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)

    return write


CASES = {
    "no quota": ("0::/a\n", {"a__cpu_dot_max": "max 100000\n"}, 8),
    "one and a half": ("0::/a\n", {"a__cpu_dot_max": "150000 100000\n"}, 2),
    "of the group above": ("0::/a/b\n", {"a__cpu_dot_max": "300000 100000\n", "a__b__cpu_dot_max": "max 100000"}, 3),
    "of a container's own root": ("0::/\n", {"cpu_dot_max": "100000 100000"}, 1),
    "a path that isn't mounted": ("0::/host/pod\n", {"cpu_dot_max": "400000 100000"}, 4),
    "less than a core": ("0::/\n", {"cpu_dot_max": "20000 100000"}, 1),
    "more than there are": ("0::/\n", {"cpu_dot_max": "6400000 100000"}, 8),
    "the first version": (
        "4:cpu,cpuacct:/a\n3:memory:/b\n1:name=systemd:/c\n",
        {"cpu,cpuacct__a__cpu_dot_cfs_quota_us": "250000\n", "cpu,cpuacct__a__cpu_dot_cfs_period_us": "100000\n"},
        3,
    ),
    "the first version without one": (
        "4:cpu:/\n", {"cpu__cpu_dot_cfs_quota_us": "-1\n", "cpu__cpu_dot_cfs_period_us": "100000\n"}, 8,
    ),
    "what nobody wrote": ("0::/a\n", {"a__cpu_dot_max": "strange\n"}, 8),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_quota_is_as_many_cores(groups, case):
    own, files, expected = CASES[case]
    groups(own, **files)
    assert counting.cores() == expected


def test_without_control_groups_the_affinity_counts(groups):
    assert counting.cores() == 8


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_a_process_that_is_bound_to_a_core_has_one():
    one = str(min(os.sched_getaffinity(0)))
    bind = f"import os; os.sched_setaffinity(0, {{{one}}}); {ASK}"
    assert subprocess.run([sys.executable, "-c", bind], capture_output=True, text=True, check=True).stdout == "1\n"
