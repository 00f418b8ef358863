"""A program's cycles: those of a loop's body once a run, those inside a fusion not twice."""

from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.cost.machine import Machine
from kanawa_parallel.plan.cost.timing import Timing
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


def cycles(text, device):
    work = Timing(parse_module(text), {}, Machine(device, Links.of_devices(device, None, 1))).work()
    return {item.name: item.cycles for item in work if item.cycles}


def test_a_loops_body_counts_once_a_run_and_a_fusion_for_all_it_holds(torus):
    assert cycles(PROGRAM, torus) == {"f": 70, "y": 3}


def test_what_the_compiler_does_not_estimate_counts_as_nothing(torus):
    assert not cycles(PROGRAM.replace('"estimated_cycles"', '"guessed"'), torus)
