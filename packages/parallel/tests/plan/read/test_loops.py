"""How often everything runs: trip counts in each form compilers write, and nested loops against running them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kanawa_parallel.plan.read.hlo import parse_module
from kanawa_parallel.plan.read.loops import calls, executions, trip_count


def looped(compare="ROOT c = pred[] compare(i, n), direction=LT", limit=7, start=0, known="", before="", extra=""):
    """Returns a module with one loop over a counter and an array."""
    return f"""HloModule loops
{extra}
body (s: (s32[], f32[4])) -> (s32[], f32[4]) {{
  s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[4] get-tuple-element(s), index=1
  ROOT t = (s32[], f32[4]) tuple(next, x)
}}
cond (s: (s32[], f32[4])) -> pred[] {{
  s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant({limit})
  {compare}
}}
ENTRY main (p: f32[4]) -> f32[4] {{
  p = f32[4] parameter(0)
  z = s32[] constant({start})
  {before or "first = s32[] copy(z)"}
  t = (s32[], f32[4]) tuple(first, p)
  w = (s32[], f32[4]) while(t), condition=cond, body=body{known}
  ROOT r = f32[4] get-tuple-element(w), index=1
}}
"""


def trips(text):
    module = parse_module(text)
    entry = module.computations[module.entry]
    return trip_count(module, entry, entry.by_name["w"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (looped(), 7),
        (looped(limit=0), 0),
        (looped(start=3), 4),
        (looped(start=9), 0),
        (looped(compare="ROOT c = pred[] compare(i, n), direction=LE"), 8),
        (looped(compare="ROOT c = pred[] compare(n, i), direction=GT"), 7),
        (looped(compare="ROOT c = pred[] compare(n, i), direction=GE"), 8),
        (looped(known=', backend_config={"known_trip_count":{"n":"11"}}'), 11),
        (looped(compare="k = s32[] copy(n)\n  ROOT c = pred[] compare(i, k), direction=LT"), 7),
        (looped(before="moved = s32[] copy(z)\n  first = s32[] bitcast(moved)", start=2), 5),
    ],
    ids=["below", "never", "from three", "from behind", "up to", "turned", "turned up to", "known", "copied", "moved"],
)
def test_trip_counts(text, expected):
    assert trips(text) == expected


FUSED = """
compared (a: s32[], b: s32[]) -> pred[] {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT c = pred[] compare(b, a), direction=LT
}
"""


def test_a_condition_may_be_fused_with_its_arguments_in_any_order():
    assert trips(looped(compare="ROOT c = pred[] fusion(n, i), kind=kLoop, calls=compared", extra=FUSED)) == 7


@pytest.mark.parametrize(
    "compare",
    [
        "m = s32[] parameter(1)\n  ROOT c = pred[] compare(i, m), direction=LT",
        "ROOT c = pred[] not(p)",
        "ROOT c = pred[] compare(i), direction=LT",
    ],
    ids=["no constant", "no comparison", "one operand"],
)
def test_a_loop_whose_limit_the_text_does_not_say_counts_once(compare):
    assert trips(looped(compare=compare)) == 1


def test_a_condition_runs_once_more_than_its_body():
    module = parse_module(looped())
    entry = module.computations[module.entry]
    assert calls(module, entry, entry.by_name["w"]) == {"body": 7, "cond": 8}
    assert executions(module) == {"main": 1, "body": 7, "cond": 8}


def nested(tree, name="main"):
    """Returns (text of all computations, instruction lines) of a tree of loops: (trips, children)."""
    text, lines = [], []
    for index, (count, children) in enumerate(tree):
        below = f"{name}_{index}"
        inner_text, inner = nested(children, below)
        body = "\n".join(["  s = (s32[], f32[4]) parameter(0)", *inner, "  ROOT t = (s32[], f32[4]) copy(s)"])
        text += inner_text
        text.append(f"{below} (s: (s32[], f32[4])) -> (s32[], f32[4]) {{\n{body}\n}}\n")
        text.append(f"{below}_c (s: (s32[], f32[4])) -> pred[] {{\n  ROOT c = pred[] constant(true)\n}}\n")
        known = f'backend_config={{"known_trip_count":{{"n":"{count}"}}}}'
        lines.append(f"  w{index} = (s32[], f32[4]) while(s), condition={below}_c, body={below}, {known}")
    return text, lines


def run(tree, name="main", times=1):
    """Returns {computation: runs} by running the loops, one iteration after the other."""
    counts = {name: times}
    for index, (count, children) in enumerate(tree):
        for _ in range(times):
            for _ in range(count):
                for inner, runs in run(children, f"{name}_{index}").items():
                    counts[inner] = counts.get(inner, 0) + runs
    return counts


trees = st.recursive(st.just([]), lambda below: st.lists(st.tuples(st.integers(0, 3), below), max_size=2), max_leaves=5)


@given(trees)
def test_nested_loops_multiply(tree):
    text, lines = nested(tree)
    entry = "\n".join(["  s = (s32[], f32[4]) parameter(0)", *lines, "  ROOT r = (s32[], f32[4]) copy(s)"])
    module = parse_module("HloModule n\n" + "".join(text) + f"ENTRY main (s: s32[]) -> s32[] {{\n{entry}\n}}\n")
    counted = {name: runs for name, runs in executions(module).items() if not name.endswith("_c")}
    assert counted == {name: runs for name, runs in run(tree).items() if runs}


def test_a_computation_that_two_call_runs_for_both():
    text = """HloModule shared
f (a: f32[4]) -> f32[4] {
  a = f32[4] parameter(0)
  ROOT n = f32[4] negate(a)
}
g (a: f32[4]) -> f32[4] {
  a = f32[4] parameter(0)
  ROOT b = f32[4] fusion(a), kind=kLoop, calls=f
}
ENTRY main (p: f32[4]) -> f32[4] {
  p = f32[4] parameter(0)
  x = f32[4] call(p), to_apply=g
  y = f32[4] call(x), to_apply=g
  ROOT z = f32[4] fusion(y), kind=kLoop, calls=f
}
"""
    assert executions(parse_module(text)) == {"main": 1, "g": 2, "f": 3}


def test_what_nothing_calls_never_runs():
    text = "HloModule m\nlost (a: f32[]) -> f32[] {\n  ROOT a = f32[] parameter(0)\n}\nENTRY e (a: f32[]) -> f32[] {\n"
    assert executions(parse_module(text + "  ROOT a = f32[] parameter(0)\n}\n")) == {"e": 1}


def test_every_branch_of_a_conditional_counts_as_taken():
    text = """HloModule branches
one (a: f32[4]) -> f32[4] {
  ROOT a = f32[4] parameter(0)
}
two (a: f32[4]) -> f32[4] {
  ROOT a = f32[4] parameter(0)
}
ENTRY main (p: f32[4], i: s32[]) -> f32[4] {
  p = f32[4] parameter(0)
  i = s32[] parameter(1)
  ROOT r = f32[4] conditional(i, p, p), branch_computations={one, two}
}
"""
    assert executions(parse_module(text)) == {"main": 1, "one": 1, "two": 1}


def counted(condition, step="next = s32[] add(i, one)", start="constant(0)", extra="", bound=9):
    """Returns a loop with the text's own condition, step and start; element 2 is carried as it is."""
    return f"""HloModule loops
{extra}
body (s: (s32[], f32[4], s32[])) -> (s32[], f32[4], s32[]) {{
  s = (s32[], f32[4], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  {step}
  x = f32[4] get-tuple-element(s), index=1
  n = s32[] get-tuple-element(s), index=2
  ROOT t = (s32[], f32[4], s32[]) tuple(next, x, n)
}}
cond (s: (s32[], f32[4], s32[])) -> pred[] {{
  s = (s32[], f32[4], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=2
  zero = s32[] constant(0)
  five = s32[] constant(5)
  {condition}
}}
ENTRY main (p: f32[4]) -> f32[4] {{
  p = f32[4] parameter(0)
  z = s32[] {start}
  b = s32[] constant({bound})
  t = (s32[], f32[4], s32[]) tuple(z, p, b)
  w = (s32[], f32[4], s32[]) while(t), condition=cond, body=body
  ROOT r = f32[4] get-tuple-element(w), index=1
}}
"""


TWO_MORE = """
more (a: s32[]) -> s32[] {
  a = s32[] parameter(0)
  two = s32[] constant(2)
  ROOT b = s32[] add(a, two)
}
"""


BELOW = "ROOT c = pred[] compare(i, n), direction=LT"
DOWN = ("next = s32[] subtract(i, one)", "constant(6)")
OR_EARLIER = """a = pred[] compare(i, n), direction=LT
  u = f32[4] get-tuple-element(s), index=1
  v = pred[] custom-call(u)
  ROOT c = pred[] and(v, a)"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(counted(BELOW), 9, id="carried"),
        pytest.param(
            counted("m = s32[] minimum(n, five)\n  ROOT c = pred[] compare(i, m), direction=LT"), 5, id="least"
        ),
        pytest.param(counted("ROOT c = pred[] compare(i, n), direction=NE"), 9, id="unequal"),
        pytest.param(counted(BELOW, "two = s32[] add(one, one)\n  next = s32[] add(i, two)"), 5, id="by two"),
        pytest.param(counted(BELOW, "next = s32[] fusion(i), calls=more", extra=TWO_MORE), 5, id="by two, fused"),
        pytest.param(counted("ROOT c = pred[] compare(i, zero), direction=GT", *DOWN), 6, id="down"),
        pytest.param(counted("ROOT c = pred[] compare(zero, i), direction=LE", *DOWN), 7, id="down to"),
        pytest.param(counted(OR_EARLIER), 9, id="or earlier"),
        pytest.param(counted("ROOT c = pred[] compare(n, n), direction=LT"), 1, id="for ever"),
    ],
)
def test_limits_and_steps_that_the_program_computes(text, expected):
    assert trips(text) == expected


def test_a_loop_as_long_as_anothers_counter_runs_that_often_on_average():
    inner = """
inner_body (s: (s32[], s32[])) -> (s32[], s32[]) {
  s = (s32[], s32[]) parameter(0)
  j = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  more = s32[] add(j, one)
  last = s32[] get-tuple-element(s), index=1
  ROOT t = (s32[], s32[]) tuple(more, last)
}
inner_cond (s: (s32[], s32[])) -> pred[] {
  s = (s32[], s32[]) parameter(0)
  j = s32[] get-tuple-element(s), index=0
  last = s32[] get-tuple-element(s), index=1
  ROOT c = pred[] compare(j, last), direction=LT
}
"""
    step = """next = s32[] add(i, one)
  zero = s32[] constant(0)
  begin = (s32[], s32[]) tuple(zero, i)
  inside = (s32[], s32[]) while(begin), condition=inner_cond, body=inner_body"""
    text = counted("ROOT c = pred[] compare(i, n), direction=LT", step, extra=inner)
    # 0 + 1 + … + 8 runs of the inner body in nine of the outer.
    assert executions(parse_module(text))["inner_body"] == sum(range(9))


def test_of_branches_one_runs_and_equal_ones_are_one_computation():
    text = """HloModule m
a (x: f32[4]) -> f32[4] {
  ROOT x = f32[4] parameter(0)
}
b (x: f32[4]) -> f32[4] {
  ROOT x = f32[4] parameter(0)
}
ENTRY main (p: f32[4], q: s32[]) -> f32[4] {
  p = f32[4] parameter(0)
  q = s32[] parameter(1)
  ROOT r = f32[4] conditional(q, p, p, p), branch_computations={a, b, a}
}
"""
    module = parse_module(text)
    assert executions(module) == {"main": 1, "a": 1, "b": 1}
    assert executions(module, lambda _: "b") == {"main": 1, "b": 1}


def test_an_element_named_by_its_tuple_and_place_is_one():
    """As libtpu 0.0.52 writes it: no instruction takes the element."""
    text = looped(compare="ROOT c = pred[] compare(s#0, n), direction=LT", start=2)
    text = text.replace("  i = s32[] get-tuple-element(s), index=0\n", "").replace("add(i, one)", "add(s#0, one)")
    assert trips(text) == 5
    element = parse_module(text).computations["body"].by_name["s#0"]
    assert (element.shape, element.operands, element.attribute("index")) == ("s32[]", ("s",), "0")
