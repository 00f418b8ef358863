"""The public `tinker` client, unmodified, against `kanawa serve --train`: its supervised and reinforcement recipes."""

import asyncio

import numpy as np
import pytest
from training_client import KEYS, running_service

tinker = pytest.importorskip("tinker")
types = tinker.types
#: The client closes none of its connections.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PROMPT, GOOD = [3, 4, 5], 7


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with running_service(tmp_path_factory.mktemp("tinker")) as (address, _):
        yield address


@pytest.fixture(scope="module")
def service(url):
    return tinker.ServiceClient(base_url=url, api_key=KEYS[0])


def example(ids):
    weights = [1.0 / (len(ids) - 1)] * (len(ids) - 1)
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs={"target_tokens": ids[1:], "weights": weights}
    )


def sampling(model):
    return model.save_weights_and_get_sampling_client().result()


def test_the_supervised_recipe(service):
    model, text = (
        service.create_lora_training_client(base_model="base", rank=4, seed=3).result(),
        list(b"hello, tinker"),
    )
    losses = []
    for _ in range(30):
        passed = model.forward_backward([example(text), example(text)], "cross_entropy")
        stepped = model.optim_step(types.AdamParams(learning_rate=1e-2))
        losses.append(passed.result().metrics["loss:sum"] / 2)
        stepped.result()
    assert losses[-1] < 0.2 < 4 < losses[0]
    sampler = sampling(model)
    params = types.SamplingParams(max_tokens=len(text) - 1, temperature=0.0)
    drawn = sampler.sample(types.ModelInput.from_ints(text[:1]), num_samples=1, sampling_params=params).result()
    assert drawn.sequences[0].tokens == text[1:]
    scored = sampler.compute_logprobs(types.ModelInput.from_ints(text)).result()
    own = model.forward([example(text)], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].tolist()
    assert scored[0] is None
    np.testing.assert_allclose(scored[1:], own, atol=2e-5)
    path = model.save_state("done").result().path
    again = service.create_training_client_from_state_with_optimizer(path).result()
    assert again.get_info().lora_rank == 4
    for each in (model, again):
        each.forward_backward([example(text[::-1])], "cross_entropy")
        each.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    one, other = (each.forward([example(text)], "cross_entropy").result().metrics for each in (model, again))
    assert one == other
    named = model.save_weights_for_sampler("named").result().path
    assert service.create_sampling_client(model_path=named).result().get_base_model() == "base"


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo"])
def test_the_reinforcement_recipe(service, loss):
    """The reward is the share of one token; each update samples anew from the policy as it is."""
    model = service.create_lora_training_client(base_model="base", rank=4, seed=5).result()
    rewards = []
    for number in range(8):
        params = types.SamplingParams(max_tokens=4, temperature=1.0, seed=number * 100, stop=[])
        asked = types.ModelInput.from_ints(PROMPT)
        drawn = sampling(model).sample(asked, num_samples=16, sampling_params=params).result().sequences
        found = np.array([np.mean([token == GOOD or token % 2 for token in one.tokens]) for one in drawn])
        rewards.append(found.mean())
        data = []
        for one, advantage in zip(drawn, found - found.mean(), strict=True):
            ids, before = PROMPT + one.tokens, len(PROMPT) - 1
            fields = {
                "target_tokens": ids[1:],
                "logprobs": [0.0] * before + one.logprobs,
                "advantages": [0.0] * before + [float(advantage)] * len(one.tokens),
            }
            data.append(types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=fields))
        passed = model.forward_backward(data, loss)
        model.optim_step(types.AdamParams(learning_rate=3e-3)).result()
        # What the engine drew with and what is trained are one policy: the sum of ratios times advantages is 0.
        assert abs(passed.result().metrics["loss:sum"]) < 1e-3
    assert rewards[0] < 0.6 and np.mean(rewards[-3:]) > 0.85, rewards


def test_two_tenants_at_once_by_the_asynchronous_client(url):
    async def train(key, text):
        service = tinker.ServiceClient(base_url=url, api_key=key)
        model = await service.create_lora_training_client(base_model="base", rank=2, seed=1)
        for _ in range(15):
            passed = model.forward_backward([example(list(text))], "cross_entropy")
            await model.optim_step(types.AdamParams(learning_rate=1e-2))
            last = await passed
        sampler = await model.save_weights_and_get_sampling_client()
        params = types.SamplingParams(max_tokens=len(text) - 1, temperature=0.0)
        drawn = await sampler.sample(types.ModelInput.from_ints([text[0]]), num_samples=1, sampling_params=params)
        return last.metrics["loss:sum"], bytes(drawn.sequences[0].tokens)

    async def both():
        return await asyncio.gather(train(KEYS[0], b"xylophone"), train(KEYS[1], b"xerophyte"))

    (first, said), (second, other) = asyncio.run(both())
    assert first < 1 and second < 1
    assert (said, other) == (b"ylophone", b"erophyte")


def test_a_refusal_reaches_the_user_with_its_reason(service):
    model = service.create_lora_training_client(base_model="base", rank=1).result()
    with pytest.raises(tinker.BadRequestError, match="expected token ids, 0 to"):
        model.forward_backward([example([1, 9999])], "cross_entropy").result()
    with pytest.raises(tinker.NotFoundError, match="isn't served here; this server has 'base'"):
        service.create_lora_training_client(base_model="other", rank=1).result()
