"""What the preflight reports of LLVM."""

import pytest
from kanawa_backends_cpu import doctor


@pytest.mark.parametrize("installed, fix", [(True, ""), (False, 'pip install "kanawa[cpu]"')])
def test_findings(installed, fix, monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: name if installed else None)
    (finding,) = doctor.findings()
    assert (finding.level, finding.fix, bool(finding.meaning)) == ("ok", fix, not installed)
