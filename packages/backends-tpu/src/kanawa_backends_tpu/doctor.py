"""What a preflight can say about TPUs without touching one."""

from kanawa.plugins import Finding


def findings() -> list[Finding]:
    """Returns one finding: the compiler is there, or why it should be."""
    from kanawa_backends_tpu.topology import has_tpu, missing_wheels

    if not missing_wheels():
        return [Finding("ok", "tpu", "libtpu is installed: TPU targets can be compiled")]
    fix = 'pip install "kanawa-backends-tpu[tpu]"'
    if has_tpu():
        return [Finding("error", "tpu", "this machine has TPU chips but no libtpu: JAX uses the CPU", fix)]
    return [Finding("warning", "tpu", "no libtpu: plans for TPU targets can't be compiled", fix)]
