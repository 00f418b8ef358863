"""The table of compiled kernels: what isn't compiled anew is kept, and no case is one that its kernel refuses."""

import pytest
from kanawa.composition.target import parse_target
from kanawa.plugins import component
from tpu_compiled import CASES, TARGETS, Case, read, rendered, rows


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kernel} {case.purpose}")
def test_every_kernel_takes_its_cases(case: Case):
    for selector in TARGETS:
        assert component("kernels", case.kernel)().verdict(case.problem, parse_target(selector).device)


def test_cells_are_kept_where_nothing_is_compiled():
    first = next(rows({}, (), ""))
    assert first[2:] == ["-"] * len(TARGETS)
    kept = read(rendered([[*first[:2], "1.5 MiB", "-", "2.0 MiB", "-"]]))
    assert next(rows(kept, (), ""))[2:] == ["1.5 MiB", "-", "2.0 MiB", "-"]
