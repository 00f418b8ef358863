"""Generated problems: deterministic, spread over every feature, bent to what a picky kernel takes."""

import dataclasses

import pytest
from kanawa.errors import KernelError
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.kernels.verdict import first_refusal
from kanawa.testing.compare import examples_for
from kanawa_kernel_tools.examples.attention import EXAMPLES
from kanawa_kernel_tools.examples.space import Space

SPACE = EXAMPLES.space
OPERATIONS = (
    *("attention", "diagonal_recurrence", "grouped_matmul"),
    *("linear_recurrence", "matmul", "quantized_matmul", "rms_norm", "softmax_cross_entropy"),
)


class Picky(ReferenceAttention):
    """As hard to please as a kernel for pages on a TPU."""

    def supports(self, problem, device):
        return first_refusal(
            (problem.mode != "decode", f"mode {problem.mode}, takes decode"),
            (not problem.paged, "keys aren't in pages"),
            (problem.page_size not in (64, 128), f"pages of {problem.page_size}, takes 64 or 128"),
            (problem.dtype != "bfloat16", f"dtype {problem.dtype}, takes bfloat16"),
            (problem.head_dim % 128 != 0, f"head_dim {problem.head_dim}, takes multiples of 128"),
            (problem.has_bias or problem.has_q_positions, "bias or positions are given"),
            (problem.mask.uses - {"causal", "window"}, f"mask {problem.mask.describe()}"),
        )


class Nothing(ReferenceAttention):
    def supports(self, problem, device):
        return first_refusal((True, "takes nothing at all"))


def test_the_same_seed_gives_the_same_problems_and_another_gives_others():
    first, again = (SPACE.generate(Picky(), 10) for _ in range(2))
    assert first == again
    assert first.problems != SPACE.generate(Picky(), 10, seed=1).problems


def test_a_picky_kernel_gets_what_it_takes_in_all_its_forms():
    sweep = SPACE.generate(Picky(), 12)
    assert len(set(sweep.problems)) == 12
    assert all(Picky().supports(problem, None) for problem in sweep.problems)
    met = {name: {getattr(p, name) for p in sweep.problems} for name in ("head_dim", "page_size", "has_sinks")}
    assert met == {"head_dim": {128, 256}, "page_size": {64, 128}, "has_sinks": {False, True}}
    assert len({p.mask for p in sweep.problems}) > 2 and len({p.kv_length for p in sweep.problems}) > 2
    assert "pages of 16, takes 64 or 128" in {refusal.reason for refusal in sweep.refusals}


def test_a_kernel_that_takes_nothing_gets_nothing():
    sweep = SPACE.generate(Nothing(), 5)
    assert sweep.problems == () and sweep.refusals[0].reason == "takes nothing at all"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_few_problems_meet_every_value_of_every_feature(operation):
    """A kernel that is wrong for one feature alone is caught by the short sweep."""
    examples, seen = examples_for(operation), {}

    def build(choice):
        problem = examples.space.build(choice)
        seen.setdefault(problem, dict(choice))
        return problem

    sweep = Space(examples.space.features, build).generate(examples.reference, 12)
    for name, values in examples.space.features.items():
        missed = set(values) - {seen[problem][name] for problem in sweep.problems}
        assert not missed, f"{name}: {missed}"


def test_every_problem_of_a_space_has_operands_that_the_operation_takes():
    import numpy as np
    from kanawa.kernels.attention.checks import check_operands

    for problem in SPACE.generate(ReferenceAttention(), 60).problems:
        operands = EXAMPLES.operands(problem, np.random.default_rng(0))
        check_operands(problem, operands, has_dropout_key="dropout_key" in operands)


def test_narrowing_replaces_values_and_knows_its_features():
    narrowed = SPACE.narrowed({"head_dims": ((32, 32),)})
    assert {p.head_dim for p in narrowed.generate(ReferenceAttention(), 5).problems} == {32}
    with pytest.raises(KernelError, match="no feature 'head_dim' to narrow the sweep by; did you mean 'head_dims'"):
        SPACE.narrowed({"head_dim": (32,)})


def test_a_choice_without_a_name_of_its_own_is_the_same_problem():
    plain = {name: values[0] for name, values in SPACE.features.items()}
    assert SPACE.build(plain) == dataclasses.replace(SPACE.build(plain))
    assert SPACE.build({**plain, "page_size": 16}) is None
