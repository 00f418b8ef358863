"""What this package's matmul kernels share: the dtypes they take, and which problems have few rows."""

from kanawa.kernels.matmul.problem import MatmulProblem

_NARROW, _WIDE = "bfloat16", "float32"
#: Rows up to which a matmul in serving is one of few rows.
FEW_ROWS = 64


def in_one_dtype(problem: MatmulProblem) -> str:
    """Returns the dtype in which both operands are multiplied: the narrower one's."""
    return _NARROW if _NARROW in (problem.x_dtype, problem.weight_dtype) else _WIDE


def unfit_dtypes(problem: MatmulProblem) -> str:
    """Returns why a kernel that multiplies two operands of one dtype and sums in fp32 refuses the dtypes; else ""."""
    p = problem
    operands = {p.x_dtype, p.weight_dtype}
    if not operands <= {_NARROW, _WIDE}:
        return f"operands are {p.x_dtype} and {p.weight_dtype}; it takes {_WIDE} and {_NARROW}"
    if p.dtype not in (_WIDE, in_one_dtype(p)):
        return f"the result is {p.dtype}; it makes {_WIDE}, or what it multiplies"
    # A wider operand is rounded, as an accelerator would round it.
    if len(operands) > 1 and p.precision != "default":
        return f"{p.precision} precision rules out rounding {_WIDE} to {_NARROW}"
    return ""


def few_rows(problem: MatmulProblem) -> bool:
    """Returns whether a problem is one of serving, with few rows."""
    return problem.purpose != "train" and problem.rows <= FEW_ROWS
