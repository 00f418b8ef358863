"""Clients train adapters over HTTP: as our own trainer does, apart from each other, and with clear refusals."""

import contextlib
import time

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.contracts import Batch
from kanawa_layers.modifiers.weights import LoRAModifier
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.learn.adamw import AdamW
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.serve.training import wire
from kanawa_runtime.serve.training.adapters import AdapterKind, BaseModel
from kanawa_runtime.serve.training.losses import LOSSES
from kanawa_runtime.train.trainer import Trainer
from training_client import BYTES, KEYS, TRAINING, Client, Model, base_params, recipe, row, running_service

LENGTH = 17
TOKENS = np.random.default_rng(0).integers(0, BYTES.vocab_size, (3, LENGTH))
ADAM = {"learning_rate": 3e-3, "beta1": 0.8, "beta2": 0.97, "eps": 1e-9, "weight_decay": 0.02}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with running_service(tmp_path_factory.mktemp("training")) as both:
        yield both


@pytest.fixture
def url(running):
    return running[0]


@pytest.fixture
def stack():
    with contextlib.ExitStack() as opened:
        yield opened


@pytest.fixture
def client(url, stack):
    return Client(url, stack)


def own_losses(steps, clip_norm):
    """Returns what this package's trainer makes of the same rows, adapter and numbers."""
    cfg = Trainer.Config(
        model=recipe(),
        data=RandomTokens.Config(vocab_size=BYTES.vocab_size, sequence_length=LENGTH - 1),
        batch_size=len(TOKENS), steps=steps,
        learner=Learner.Config(
            optimizer=AdamW.Config(b1=0.8, b2=0.97, eps=1e-9, weight_decay=0.02),
            schedule=Constant.Config(peak=3e-3), clip_norm=clip_norm,
        ),
    )  # fmt: skip
    cfg = LoRAModifier.Config(rank=2, alpha=TRAINING.alpha, targets=("**.stack.**",)).build()(cfg)
    trainer = Trainer(cfg.freeze())
    plain, base = recipe().build(), unflatten_paths(base_params())
    adapter = BaseModel(plain, base, {}, kn.contracts.Environment(), TRAINING).adapted(AdapterKind(2)).initial(1)
    params = unflatten_paths({**flatten_paths(base), **adapter})
    state = trainer.init()._replace(params=params)
    step, losses = jax.jit(trainer.train_step), []
    for _ in range(steps):
        state, report = step(state, Batch.of_tokens(jnp.asarray(TOKENS)))
        losses.append(report.read()["loss"])
    return losses


@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_losses_are_those_of_our_own_trainer_on_the_same_rows(client, clip_norm):
    model, count = client.model(rank=2, seed=1), TOKENS[:, 1:].size
    # The trainer's loss is a mean, the protocol's a sum.
    rows = [row(ids, weights=np.full(LENGTH - 1, 1 / count)) for ids in TOKENS]
    losses = []
    for _ in range(6):
        losses.append(model.run(rows)[0])
        model.step(**ADAM, grad_clip_norm=clip_norm or 0.0)
    assert losses[-1] < losses[0] - 0.05
    np.testing.assert_allclose(losses, own_losses(6, clip_norm), rtol=2e-6)


def test_gradients_of_several_passes_are_summed_whatever_their_order_and_number(client):
    rows = [row(ids) for ids in (*TOKENS, TOKENS[0][:9])]
    whole, parts = client.model(), client.model()
    whole.run(rows)
    # Later ones first, as clients send the parts of one call at once.
    numbers = [parts.next() for _ in rows]
    sent = [parts.send(parts.body([one], number=n)) for one, n in reversed(list(zip(rows, numbers, strict=True)))]
    for one in sent:
        client.answer(one.json()["request_id"])
    whole.step(**ADAM)
    parts.step(**ADAM)
    np.testing.assert_allclose(whole.run(rows)[0], parts.run(rows)[0], rtol=1e-6)


def test_a_pass_forward_alone_changes_nothing(client):
    model = client.model()
    before = model.run([row(TOKENS[0])], forward_only=True)[0]
    answer = model.step(**ADAM)
    assert answer["category"] == "user" and "there are no gradients; call forward_backward" in answer["error"]
    assert model.run([row(TOKENS[0])], forward_only=True)[0] == before


def test_tenants_do_not_influence_each_other(url, stack):
    def train(model, ids, between=lambda: None):
        losses = []
        for _ in range(4):
            losses.append(model.run([row(ids)])[0])
            between()
            model.step(**ADAM)
        return losses

    alone = train(Client(url, stack).model(rank=3, seed=7), TOKENS[0])
    first, second = Client(url, stack).model(rank=3, seed=7), Client(url, stack, KEYS[1]).model(rank=4, seed=8)

    def other():
        second.run([row(TOKENS[1])])
        second.step(**ADAM)

    assert train(first, TOKENS[0], other) == alone
    # Nor reach each other's, by whatever name.
    stranger = Model(second.client, first.id)
    refused = stranger.send(stranger.body([row(TOKENS[0])], number=99))
    assert refused.status_code == 404 and "this key has no model in training" in refused.text
    saved = first.client.promised("save_weights", model_id=first.id, seq_id=first.next(), path="mine")["path"]
    at = {"session_id": second.client.session, "model_seq_id": 50, "path": saved, "optimizer": True}
    assert "leads to no checkpoint that this key may read" in second.client.promised("load_weights", **at)["error"]


def test_a_saved_model_goes_on_as_if_it_had_not_stopped(client):
    def steps(model, count):
        losses = []
        for _ in range(count):
            losses.append(model.run([row(TOKENS[1])])[0])
            model.step(**ADAM)
        return losses

    model = client.model()
    steps(model, 2)
    path = client.promised("save_weights", model_id=model.id, seq_id=model.next(), path="half")["path"]
    assert path == f"tinker://{model.id}/weights/half"
    there = client.promised("save_weights", model_id=model.id, seq_id=model.next(), path="half")
    assert there["category"] == "user" and "is there already" in there["error"]
    expected = steps(model, 3)
    fields = {"session_id": client.session, "model_seq_id": 77, "path": path}
    made = client.promised("load_weights", **fields, optimizer=True)
    assert steps(Model(client, made["model_id"]), 3) == expected
    made = client.promised("load_weights", **fields | {"model_seq_id": 78}, optimizer=False)
    without = steps(Model(client, made["model_id"]), 3)
    assert without[0] == expected[0] and without[2] != expected[2]


def sampled(client, session, prompt, **fields):
    body = {"prompt": {"chunks": [{"type": "encoded_text", "tokens": [int(i) for i in prompt]}]}, **fields}
    content = client.promised("asample", sampling_session_id=session, seq_id=np.random.randint(2**30), **body)
    assert isinstance(content, bytes), content
    message = wire._class("SampleResponse")()
    message.ParseFromString(content)
    return message


def test_samples_are_of_the_model_as_it_is_when_it_is_saved_and_their_probabilities_the_trainer_s(client):
    model, text = client.model(rank=4), [1, 20, 1, 20, 1, 20, 1, 20]
    for _ in range(25):
        model.run([row(text)])
        model.step(learning_rate=1e-2)
    loss, logprobs = model.run([row(text)], forward_only=True)
    assert loss < 4
    fields = {"model_id": model.id, "seq_id": model.next(), "sampling_session_seq_id": 0}
    session = client.promised("save_weights_for_sampler", **fields)["sampling_session_id"]
    greedy = {"sampling_params": {"max_tokens": 5, "temperature": 0.0, "stop": []}}
    got = sampled(client, session, text[:3], **greedy, prompt_logprobs=True, num_samples=2)
    assert [np.frombuffer(one.tokens, np.int32).tolist() for one in got.sequences] == [[20, 1, 20, 1, 20]] * 2
    every = [*np.frombuffer(got.prompt_logprobs, np.float32)[1:], *np.frombuffer(got.sequences[0].logprobs, np.float32)]
    np.testing.assert_allclose(every, logprobs[0], atol=2e-5)
    # Further training doesn't reach what is sampled from; another adapter's slot may be taken for it meanwhile.
    for number in range(1, 4):
        model.run([row(TOKENS[number - 1])])
        model.step(learning_rate=1e-1)
        fields = {"model_id": model.id, "seq_id": model.next(), "sampling_session_seq_id": number}
        other = client.promised("save_weights_for_sampler", **fields)["sampling_session_id"]
        assert sampled(client, other, text[:3], **greedy).sequences[0].tokens != got.sequences[0].tokens
    assert sampled(client, session, text[:3], **greedy).sequences[0].tokens == got.sequences[0].tokens


def test_a_stop_token_is_part_of_what_was_drawn_and_a_stop_text_ends_it(client):
    model, text = client.model(rank=4), list(b"ab ab ab ab ")
    for _ in range(30):
        model.run([row(text)])
        model.step(learning_rate=1e-2)
    fields = {"model_id": model.id, "seq_id": model.next(), "path": "talks"}
    path = client.promised("save_weights_for_sampler", **fields)["path"]
    session = client.post(
        "create_sampling_session", session_id=client.session, sampling_session_seq_id=90, model_path=path
    )["sampling_session_id"]
    assert client.http.get(f"/samplers/{session}").json()["model_path"] == path
    for stop, tokens in (([ord(" ")], b" ab "[1:]), (["b a"], b"ab a"), (None, b"ab ab")):
        params = {"max_tokens": 5, "temperature": 0.0, "stop": stop}
        one = sampled(client, session, b"ab ", sampling_params=params).sequences[0]
        assert bytes(np.frombuffer(one.tokens, np.int32).astype(np.uint8)) == tokens
        assert one.stop_reason == (1 if stop is None else 0)
        assert len(one.logprobs) == len(one.tokens)


@pytest.mark.parametrize("name", ["importance_sampling", "ppo", "cispo", "dro"])
def test_policy_losses_are_their_formulas(client, name):
    rng = np.random.default_rng(3)
    _, (logprobs, *_) = client.model().run([row(TOKENS[0])], forward_only=True)
    sampled_logprobs = logprobs + rng.normal(0, 0.5, len(logprobs))
    advantages = rng.normal(0, 1, len(logprobs))
    rows = [row(TOKENS[0], logprobs=sampled_logprobs, advantages=advantages)]
    ratio = np.exp(logprobs - sampled_logprobs)
    clipped = np.clip(ratio, 0.9, 1.2)
    expected = {
        "importance_sampling": -(ratio * advantages).sum(),
        "ppo": -np.minimum(ratio * advantages, clipped * advantages).sum(),
        "cispo": -(clipped * advantages * logprobs).sum(),
        "dro": -(logprobs * advantages - 0.15 * (logprobs - sampled_logprobs) ** 2).sum(),
    }[name]
    options = {"ppo": {"clip_low_threshold": 0.9}, "cispo": {"clip_low_threshold": 0.9}, "dro": {"beta": 0.3}}
    np.testing.assert_allclose(client.model().run(rows, name, options.get(name, {}))[0], expected, rtol=1e-4)
    assert set(LOSSES[name].inputs) == {"logprobs", "advantages"}


GOOD = row(TOKENS[0])


@pytest.mark.parametrize(
    ("rows", "loss", "options", "said"),
    [
        ([GOOD], "mse", {}, "loss_fn: 'mse' isn't offered, expected one of cross_entropy, importance_sampling"),
        ([], "cross_entropy", {}, "data: it is empty"),
        (
            [GOOD],
            "ppo",
            {},
            "it has ['target_tokens', 'weights']; ppo takes ['advantages', 'logprobs', 'target_tokens']",
        ),
        ([GOOD], "cross_entropy", {"beta": 1.0}, "loss_fn_config.beta: cross_entropy takes finite numbers for: none"),
        ([row([1, 2, 999])], "cross_entropy", {}, "data[0].loss_fn_inputs.target_tokens: expected token ids, 0 to"),
        ([row([999, 2])], "cross_entropy", {}, "data[0].model_input: expected token ids, 0 to"),
        ([row(np.zeros(70))], "cross_entropy", {}, "data[0].model_input: it has 69 tokens, expected 1 to 64"),
        ([([1, 2], {"target_tokens": [1]})], "cross_entropy", {}, "it has 1 numbers, and model_input 2 tokens"),
        (
            [GOOD, row([1, 2], weights=[np.nan])],
            "cross_entropy",
            {},
            "data[1].loss_fn_inputs.weights: it holds numbers",
        ),
    ],
)
def test_rows_that_can_t_be_trained_on_are_refused_and_hold_nothing_up(client, rows, loss, options, said):
    model = client.model()
    refused = model.send(model.body(rows, loss, options))
    assert refused.status_code == 400 and said in refused.json()["error"]["message"]
    assert model.run([GOOD])[0] > 0


def test_a_request_that_is_refused_while_it_is_read_holds_nothing_up(client):
    model = client.model()
    wrong = {"model_id": model.id, "seq_id": model.next(), "adam_params": {"beta1": 2.0}}
    refused = client.send("optim_step", wrong)
    assert refused.status_code == 400 and "beta1" in refused.json()["error"]["message"]
    message = wire._class("ForwardBackwardRequest")()
    message.ParseFromString(model.body([GOOD]))
    message.data[0].loss_fn_inputs[0].value.dtype = 9
    refused = model.send(message.SerializeToString())
    assert refused.status_code == 400 and "dtype 9 is unknown" in refused.text
    assert model.run([GOOD])[0] > 0
    # Nor does a number do anything twice, or take room that those before it need.
    used = model.send(model.body([GOOD], number=1))
    assert used.status_code == 400 and "request 1 is done or was refused; the next is 4" in used.text
    far = model.send(model.body([GOOD], number=4 + TRAINING.max_pending))
    assert far.status_code == 429 and "has to wait for 4, and at most 512 may wait or run" in far.text


def test_what_waits_for_a_request_that_never_comes_fails_after_a_while(running, client, monkeypatch):
    monkeypatch.setattr(running[1], "config", TRAINING.clone().set(gap_seconds=0.5))
    model = client.model()
    # Its number can't be read.
    assert model.send(b"no message").status_code == 400
    lost = model.next()
    sent = [model.send(model.body([GOOD])).json()["request_id"] for _ in range(2)]
    for number, one in enumerate(sent, lost + 1):
        failed = client.answer(one)
        assert failed["category"] == "user", failed
        assert f"request {lost} of this model didn't come within 0.5 s (training.gap_seconds)" in failed["error"]
        assert f"request {number} had to wait for it" in failed["error"]
    late = model.send(model.body([GOOD], number=lost))
    assert late.status_code == 400 and f"request {lost} is done or was refused" in late.text
    assert "there are no gradients" in model.step(**ADAM)["error"]
    assert model.run([GOOD])[0] > 0


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("create_model", {"base_model": "other"}, 404, "'other' isn't served here; this server has 'base'"),
        ("create_model", {"lora_config": None}, 400, "this server trains adapters, and no whole model"),
        ("create_model", {"lora_config": {"rank": 5}}, 400, "lora_config.rank: it is 5, expected at most 4"),
        ("create_model", {"optimizer_config": {"type": "dimuon"}}, 400, "'dimuon' isn't offered, expected 'adamw'"),
        ("create_model", {"session_id": "nobody"}, 404, "this key has no session 'nobody'"),
        ("optim_step", {"model_id": "nobody", "seq_id": 1}, 404, "this key has no model in training 'nobody'"),
        ("retrieve_future", {"request_id": "nobody"}, 410, "there is no such request of this key"),
        ("create_sampling_session", {"model_path": "tinker://../x/y"}, 400, "is no address of a checkpoint"),
        ("create_sampling_session", {"model_path": "/etc/passwd"}, 400, "is no address of a checkpoint"),
        ("create_session", {"colour": "red"}, 400, "colour: this server doesn't offer it"),
    ],
)
def test_what_can_t_be_asked_for_is_said(client, path, body, status, said):
    usual = {
        "create_model": {"model_seq_id": 9, "base_model": "base", "lora_config": {"rank": 2}},
        "create_sampling_session": {"sampling_session_seq_id": 9},
    }
    session = {"session_id": client.session} if path in usual else {}
    refused = client.send(path, {**session, **usual.get(path, {}), **body})
    assert refused.status_code == status and said in refused.json()["error"]["message"]


def test_without_a_key_nobody_trains(url, client):
    client.http.headers["X-API-Key"] = "tml-other"
    assert client.send("create_session", {}).status_code == 401


def test_what_would_train_nothing_fails_with_its_reason(client):
    fields = {"session_id": client.session, "model_seq_id": 0, "base_model": "base"}
    nothing = {"rank": 2, "train_mlp": False, "train_attn": False}
    answer = client.promised("create_model", **fields, lora_config=nothing)
    assert answer["category"] == "user" and "nothing would be trained: set train_attn or train_mlp" in answer["error"]


def test_a_damaged_checkpoint_is_named(tmp_path, client, url):
    from kanawa_runtime.serve.training.saved import SavedAdapters, SavedError

    saved = SavedAdapters(tmp_path)
    address = saved.address("model", "weights", "one")
    saved.save(address, {"owner": "me"}, {"params/a": np.arange(3.0)})
    assert saved.load(address, "me").of("params")["a"].tolist() == [0, 1, 2]
    with pytest.raises(SavedError, match="this key may read"):
        saved.load(address, "you")
    np.savez(tmp_path / "model" / "weights" / "one" / "arrays.npz", **{"params/a": np.arange(4.0)})
    with pytest.raises(SavedError, match="is damaged"):
        saved.load(address, "me")
    for name in ("../one", ".hidden", "a/b", ""):
        with pytest.raises(SavedError, match="can't be the name of a checkpoint"):
            saved.address("model", "weights", name)


def test_models_of_clients_that_are_gone_make_room_and_those_of_others_do_not(running, url, stack, monkeypatch):
    service, old, new = running[1], Client(url, stack), Client(url, stack)
    model = old.model()
    monkeypatch.setattr(service, "config", TRAINING.clone().set(max_models=len(service._models), session_seconds=0.3))
    for session in service._sessions.values():
        session.seen_at = time.monotonic() + 100
    fields = {"session_id": new.session, "model_seq_id": 0, "base_model": "base", "lora_config": {"rank": 1}}
    full = new.send("create_model", fields)
    assert full.status_code == 429 and "are in training here (training.max_models)" in full.text
    service._sessions[old.session].seen_at = 0
    time.sleep(0.4)
    assert new.promised("create_model", **fields)["model_id"] == f"{new.session}:train:0"
    gone = model.send(model.body([GOOD]))
    assert gone.status_code == 404 and "this key has no model in training" in gone.text
    # A client that says it has ended leaves at once.
    assert new.http.post(f"/sessions/{new.session}/finish", json={}).status_code == 200
    assert new.send("get_info", {"model_id": f"{new.session}:train:0"}).status_code == 404
