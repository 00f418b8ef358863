"""A kernel installed between two attempts changes a resumed run only with a message."""

KERNEL = '''
from kanawa.kernels import Verdict
from kanawa.kernels.softmax_cross_entropy import ReferenceCrossEntropy


class Faster(ReferenceCrossEntropy):
    """Computes what the reference does, and claims to be better."""

    name = "softmax_cross_entropy.cpu.faster"
    platforms = ("cpu",)
    priority = 100

    def supports(self, problem, device):
        return Verdict(ok=True)
'''
OPTIONS = (
    "--set", "data=random-tokens", "--set", "data.sequence_length=16", "--set", "data.vocab_size=64",
    "--set", "batch_size=2", "--set", "evaluation.every_steps=1000", "--set", "evaluation.final_batches=1",
    "--run", "runs/a",
)  # fmt: skip


def selected(installation, attempt):
    return {
        e["operation"]: e for e in installation.events("runs/a")
        if e["event"] == "kernel_selected" and e["attempt"] == attempt
    }  # fmt: skip


def trained(installation, steps, *more):
    # The schedule spans the steps of each attempt, so that a longer one may go on.
    span = ("--steps", str(steps), "--set", f"steps={steps}")
    done = installation.run("train", "llama-tiny", *span, *OPTIONS, *more)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_resumed_run_keeps_its_kernels_and_says_what_else_there_is(installation, wheel_of):
    trained(installation, 2)
    before = selected(installation, 1)["softmax_cross_entropy"]["kernel"]
    wheel = wheel_of(
        "stranger-loss",
        entry_points={"kanawa.kernels": {"softmax_cross_entropy.cpu.faster": "stranger_loss.kernel:Faster"}},
        modules={"kernel": KERNEL},
    )
    installation.install(wheel)
    said = trained(installation, 4)
    again = selected(installation, 2)["softmax_cross_entropy"]
    assert again["kernel"] == before
    assert f"kernel {before} for" in said
    assert "kept as this run chose it; softmax_cross_entropy.cpu.faster, which ranks higher now, is used with" in said
    pin = 'execution.kernels={"softmax_cross_entropy": "softmax_cross_entropy.cpu.faster"}'
    assert f"--set '{pin}'" in said
    said = trained(installation, 6, "--set", pin)
    assert selected(installation, 3)["softmax_cross_entropy"]["kernel"] == "softmax_cross_entropy.cpu.faster"
    assert "changed since the last attempt: execution.kernels" in said
    assert f"pinned by the config; this run had {before}" in said
