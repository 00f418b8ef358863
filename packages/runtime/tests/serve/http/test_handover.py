"""From the engine's thread to the loop: what one receiver does wrong keeps nothing from the others."""

import asyncio

from kanawa_runtime.serve.engine.request import Output
from kanawa_runtime.serve.http.service import Handover


def test_a_receiver_that_raises_keeps_nothing_from_those_behind_it(caplog):
    taken = []

    def broken(output, at):
        raise ValueError(output.request_id, at)

    async def main():
        handover = Handover(asyncio.get_running_loop())
        give = handover.to(broken), handover.to(lambda output, at: taken.append(output.request_id))
        for to, name in zip(give, "ab", strict=True):
            to(Output(request_id=name))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert taken == ["b"]
    assert "an output of request a was lost" in caplog.text
