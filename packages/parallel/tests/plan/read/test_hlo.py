"""Reading HLO text: what compilers write, kernels whose attributes hold lines of their own, and nonsense."""

import pytest
from kanawa_parallel.plan.read.hlo import arrays, parse_instruction, parse_module
from kanawa_parallel.plan.read.loops import executions, trip_count

KERNEL = """\
HloModule made_up

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8]{0} get-tuple-element(%p), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %kernel = f32[8]{0} custom-call(%x), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block\\": 512}"
}}, backend_config={"cost_estimate":{"flops":"640","bytes_accessed":"64"},"estimated_cycles":"70"}
  ROOT %out = (s32[], f32[8]{0}) tuple(%next, %kernel)
}

%condition (p.1: (s32[], f32[8])) -> pred[] {
  %p.1 = (s32[], f32[8]{0}) parameter(0)
  %limit = s32[] constant(7)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  ROOT %less = pred[] compare(%i.1, %limit), direction=LT
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %start = s32[] constant(2)
  %begin = (s32[], f32[8]{0}) tuple(%start, %a)
  %loop = (s32[], f32[8]{0}) while(%begin), condition=%condition, body=%body
  ROOT %end = f32[8]{0} get-tuple-element(%loop), index=1
}
"""


def test_a_kernels_attributes_may_run_over_lines_that_start_with_a_bracket():
    module = parse_module(KERNEL)
    body = module.computations["body"]
    assert [i.name for i in body.instructions] == ["p", "i", "x", "one", "next", "kernel", "out"]
    assert body.by_name["kernel"].estimated_cycles == 70
    assert body.by_name["kernel"].operands == ("x",)
    assert body.root().name == "out"


def test_a_loop_from_two_to_seven_runs_five_times():
    module = parse_module(KERNEL)
    main = module.computations["main"]
    assert trip_count(module, main, main.by_name["loop"]) == 5
    assert executions(module) == {"main": 1, "body": 5, "condition": 6}


def test_every_line_that_names_an_instruction_is_read(text, modules):
    for platform, module in modules.items():
        named = sum(line.startswith("  ") and " = " in line for line in text(f"{platform}_program").splitlines())
        assert sum(len(c.instructions) for c in module.computations.values()) == named


def test_loops_of_the_compiled_step_run_once_a_layer(modules):
    for module in modules.values():
        entry = module.computations[module.entry]
        loops = [i for i in entry.instructions if i.opcode == "while"]
        assert [trip_count(module, entry, loop) for loop in loops] == [3, 3]


def test_operands_with_shapes_beside_them_and_comments():
    line = '  %t = (f32[2]{0}, s32[]) tuple(f32[2]{0} %a, /*index=1*/s32[] %b), metadata={op_name="f(x)/a,b"}'
    instruction = parse_instruction(line)
    assert instruction.operands == ("a", "b")
    assert instruction.op_name == "f(x)/a,b"
    assert [a.bytes for a in instruction.arrays] == [8, 4]


def test_an_escaped_quote_ends_no_string():
    parsed = parse_instruction(r'  %c = f32[8] custom-call(%x), backend_config="say \"(", custom_call_target="y", z=1')
    assert parsed.attribute("backend_config") == r'"say \"("'
    assert parsed.attribute("z") == "1"


def test_shapes_with_tiles_and_narrow_dtypes():
    found = arrays("(bf16[4,8]{1,0:T(8,128)(2,1)S(1)}, f8e4m3fn[16], s4[3], pred[], token[])")
    assert [a.bytes for a in found] == [64, 16, 2, 1, 0]


def test_text_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="no ENTRY computation"):
        parse_module("not a module")


def test_an_attribute_may_hold_lines_that_look_like_ends_and_instructions():
    text = """HloModule m
ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %k = f32[8]{0} custom-call(%a), custom_call_target="k", backend_config="{
}
  %fake = f32[8]{0} negate(%a)
}", frontend_attributes={metadata={
}
}
  ROOT %out = f32[8]{0} negate(%k)
}
"""
    main = parse_module(text).computations["main"]
    assert [i.name for i in main.instructions] == ["a", "k", "out"]
    assert main.root().operands == ("k",)


def test_a_computation_of_another_thread_ends_with_its_name():
    text = """HloModule m
%on_host (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  ROOT %n = f32[8]{0} negate(%a)
}, execution_thread="host"
ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %s = ((f32[8]{0}), f32[8]{0}, u32[]) async-start(%p), async_execution_thread="host", calls=%on_host
  %u = ((f32[8]{0}), f32[8]{0}, u32[]) async-update(%s), calls=%on_host
  ROOT %d = f32[8]{0} async-done(%u), async_execution_thread="host", calls=%on_host
}
"""
    module = parse_module(text)
    assert [len(module.computations[name].instructions) for name in ("on_host", "main")] == [2, 4]
    # Its update and its end repeat what it calls; it runs once.
    assert executions(module) == {"main": 1, "on_host": 1}


def test_the_largest_integer_is_no_estimate_of_cycles():
    """libtpu 0.0.52 writes it for a gather that the SparseCore does; a step would take 167 years."""
    for cycles, wanted in ((2**63 - 1, None), (4096, 4096)):
        text = f'  f = bf16[8] fusion(x), kind=kCustom, calls=c, backend_config={{"estimated_cycles":"{cycles}"}}'
        assert parse_instruction(text).estimated_cycles == wanted
