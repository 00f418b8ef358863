"""Which programs take which chunks of prompts."""

import pytest
from kanawa.errors import UsageError
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.shapes import Shapes, grouped


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, []),
        (1, [(1, 4)]),
        (4, [(4, 4)]),
        # Two small programs compute half of what the large one would.
        (5, [(4, 4), (1, 4)]),
        (12, [(4, 4), (4, 4), (4, 4)]),
        (13, [(13, 16)]),
        (21, [(16, 16), (4, 4), (1, 4)]),
    ],
)
def test_chunks_share_the_programs_that_waste_least(count, expected):
    runs = list(grouped(range(count), (4, 16)))
    assert [(len(items), size) for items, size in runs] == expected
    assert [item for items, _ in runs for item in items] == list(range(count))


def test_prompts_come_in_tiles_where_only_pages_in_use_are_read():
    shapes = Shapes.of(EngineConfig(), 2048, has_pages=True, any_width=True)
    assert (shapes.prefill_sizes, shapes.prefill_rows, shapes.in_tiles) == ((32,), (4, 16), True)
    for kept in ({"has_pages": True}, {"has_pages": True, "has_slots": True, "any_width": True}, {"has_pages": False}):
        shapes = Shapes.of(EngineConfig(), 2048, **kept)
        assert (shapes.prefill_rows, shapes.in_tiles) == ((1,), False)


def test_states_of_whole_sequences_take_one_chunk_after_the_other():
    config = EngineConfig(prefill_rows=(4,))
    with pytest.raises(UsageError, match=r"prefill_rows is \[4\], but the model has states of whole sequences"):
        Shapes.of(config, 64, has_pages=True, has_slots=True, any_width=True)
