"""The choices of a request whose client leaves, at any moment: the engine cancels them, whatever comes meanwhile."""

import asyncio

import pytest
from kanawa_runtime.serve.engine.request import Output
from kanawa_runtime.serve.http.access import Hosts, Keys
from kanawa_runtime.serve.http.config import ServerConfig
from kanawa_runtime.serve.http.exchange import ClientGoneError, Exchange
from kanawa_runtime.serve.http.generation import new_generation
from kanawa_runtime.serve.http.protocol import completion_request
from kanawa_runtime.serve.http.service import Service

from .running_server import model_of
from .scripted_engine import ScriptedEngine


class HeldEngine(ScriptedEngine):
    """Gives an output when a test says so, and notes what is cancelled."""

    def __init__(self):
        super().__init__()
        self.give, self.cancelled = None, []

    def submit(self, request, on_output):
        self.give = on_output

    def cancel(self, request_id):
        self.cancelled.append(request_id)


def generation_of(engine):
    config = ServerConfig()
    service = Service(model_of(engine), config, Keys(), Hosts("127.0.0.1"))
    request = completion_request(engine.limits, config).model_validate({"prompt": [97], "max_tokens": 3})
    sampling = service.sampling.read(request, max_tokens=3, logprobs=None)
    exchange = Exchange({"headers": []}, None, None, config)
    return new_generation(service, exchange, request, "a", [[97]], [sampling])


@pytest.mark.parametrize("turns", range(6))
def test_a_client_that_leaves_as_a_token_comes_is_noticed(turns):
    """A token is on its way through the loop for some turns of it, in each of which its client may leave."""

    async def main():
        engine = HeldEngine()
        generation = generation_of(engine)
        with pytest.raises(asyncio.CancelledError):
            with generation:
                reader = asyncio.ensure_future(generation.whole())
                for _ in range(5):
                    await asyncio.sleep(0)
                engine.give(Output(request_id="a", token_ids=(98,)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                reader.cancel()
                await asyncio.wait((reader,), timeout=20)
                assert reader.done(), "it runs although its client has left"
                await reader
        assert engine.cancelled == [choice.request.id for choice in generation.choices]

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(4))
def test_a_block_ends_with_its_connection(turns):
    """Whatever the block waits for; and one that is done is left alone."""

    async def main():
        gone = asyncio.Event()

        async def receive():
            await gone.wait()
            return {"type": "http.disconnect"}

        exchange = Exchange({"headers": []}, receive, None, ServerConfig())
        with pytest.raises(ClientGoneError):
            async with exchange.while_connected():
                for _ in range(turns):
                    await asyncio.sleep(0)
                gone.set()
                await asyncio.sleep(20)
        assert asyncio.current_task().cancelling() == 0
        gone.clear()
        async with exchange.while_connected():
            await asyncio.sleep(0)
            gone.set()
        await asyncio.sleep(0.01)

    asyncio.run(main())
