"""The choices of a request whose client leaves, at any moment: the engine is told, however much comes meanwhile."""

import asyncio
import time

import pytest
from kanawa_runtime.serve.engine.request import Output, Request
from kanawa_runtime.serve.http.answers import Answer, Answers
from kanawa_runtime.serve.http.growing_text import GrowingText
from kanawa_runtime.serve.http.handover import Handover
from kanawa_runtime.serve.http.metrics import Metrics

from .running_server import BYTES


class HeldEngine:
    """Gives what it is told to, and notes what is cancelled."""

    def __init__(self):
        self.give, self.cancelled = None, []

    def submit(self, request, on_output):
        self.give = on_output

    def cancel(self, request_id):
        self.cancelled.append(request_id)

    def stats(self):
        return {}


@pytest.mark.parametrize("turns", range(6))
def test_a_client_that_leaves_as_a_token_comes_is_noticed(turns):
    """A token is on its way through the loop for some turns of it, in each of which its client may leave."""

    async def main():
        engine = HeldEngine()
        request = Request(id="a", prompt_ids=(97,), deadline=time.monotonic() + 600)
        answer = Answer(request, GrowingText(BYTES, [97]), index=0, prompt=0)
        handover = Handover(asyncio.get_running_loop())
        with pytest.raises(asyncio.CancelledError):
            with Answers([answer], engine, handover, Metrics("m", engine)) as answers:
                reader = asyncio.ensure_future(answers.whole())
                for _ in range(5):
                    await asyncio.sleep(0)
                engine.give(Output(request_id="a", token_ids=(98,)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                reader.cancel()
                await asyncio.wait((reader,), timeout=20)
                assert reader.done(), "it goes on for nobody"
                await reader
        assert engine.cancelled == ["a"]

    asyncio.run(main())
