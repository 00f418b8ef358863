"""A program's cycles: those of a loop's body once a run, those inside a fusion not twice."""

from kanawa_parallel.plan.read.cycles import cycles_by_runs
from kanawa_parallel.plan.read.hlo import parse_module


def estimated(cycles: int) -> str:
    return f'backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'


PROGRAM = f"""HloModule m, is_scheduled=true

held {{
  p = f32[8] parameter(0)
  ROOT half = f32[8] negate(p), {estimated(5)}
}}

body {{
  b = f32[8] parameter(0)
  f = f32[8] fusion(b), kind=kLoop, calls=held, {estimated(10)}
  ROOT kernel = f32[8] custom-call(f), custom_call_target="tpu_custom_call"
}}

cond {{
  c = f32[8] parameter(0)
  ROOT go = pred[] custom-call(c), custom_call_target="go"
}}

ENTRY main {{
  x = f32[8] parameter(0)
  w = f32[8] while(x), condition=cond, body=body, backend_config={{"known_trip_count":{{"n":"7"}}}}
  ROOT y = f32[8] copy(w), {estimated(3)}
}}
"""


def test_a_loops_body_counts_once_a_run_and_a_fusion_for_all_it_holds():
    assert dict(cycles_by_runs(parse_module(PROGRAM))) == {7: 70, 1: 3}


def test_what_the_compiler_does_not_estimate_counts_as_nothing():
    assert not cycles_by_runs(parse_module(PROGRAM.replace('"estimated_cycles"', '"guessed"')))
