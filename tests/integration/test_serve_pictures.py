"""`kanawa serve`, `generate` and `chat` on a folder of LLaVA's form, with its chat template and official clients."""

import asyncio
import base64
import io
import json
import subprocess

import anthropic
import jax
import kanawa as kn
import numpy as np
import openai
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.cli.main import main
from kanawa.contracts import StoredModel
from kanawa.errors import UsageError
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_layers.recipes.clip import image_tower
from kanawa_layers.recipes.llama import llama
from kanawa_layers.recipes.llava import earlier_tower, llava
from kanawa_runtime.data.images.model_pixels import pixels_of
from PIL import Image
from served_folder import KANAWA, Serving, environment
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = "USER: What is it? ASSISTANT: A red star beside a blue ring, a green square and a star. "
#: LLaVA 1.5's, in its own words: pictures first, then texts, of contents that are lists of parts.
TEMPLATE = (
    "{% for message in messages %}{{ message.role.upper() + ': ' }}"
    "{% for part in message.content if part.type == 'image' %}{{ '<image>\\n' }}{% endfor %}"
    "{% for part in message.content if part.type == 'text' %}{{ part.text + ' ' }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
PATCHES, SIDE = 9, 12


def tokenizer():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|end|>", "<image>"]
    made.train_from_iterator([TEXT] * 9, trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet))
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random model with pictures that matter."""
    made, where = tokenizer(), tmp_path_factory.mktemp("llava") / "model"
    tower = image_tower(num_layers=2, input_dim=16, num_heads=2, patch_size=4, image_size=SIDE)
    size = made.get_vocab_size()
    language = llama(num_layers=2, input_dim=32, num_heads=4, num_kv_heads=2, hidden_dim=48, vocab_size=size)
    mark = made.token_to_id("<image>")
    config = llava(earlier_tower(tower, 1), language, tower_dim=16, image_token_id=mark)
    params = flatten_paths(jax.jit(lambda key: kn.initialize(config.build(), key))(jax.random.key(0)))
    params = {path: np.asarray(leaf) * (6 if path.startswith("projector") else 1) for path, leaf in params.items()}
    HuggingFaceStore().save(where, StoredModel(config, params))
    made.save(str(where / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "chat_template": TEMPLATE}
    (where / "tokenizer_config.json").write_text(json.dumps(settings))
    for name, colour in COLOURS.items():
        (where.parent / f"{name}.png").write_bytes(png(colour))
    return where


@pytest.fixture(scope="module")
def serving(folder):
    sizes = ("max_batched_tokens=64", "page_size=8", "num_pages=40", "prefill_rows=[1]")
    options = [word for text in sizes for word in ("--set", f"engine.{text}")]
    made = Serving(folder, "--name", "sees", *options)
    yield made
    code, complaints = made.end()
    assert code == 0, complaints


def png(colour):
    file = io.BytesIO()
    Image.effect_mandelbrot((20, 16), (-2, -1, 1, 1), 20).convert("RGB").point(lambda x: x // 2).save(file, "PNG")
    picture = Image.open(file)
    Image.blend(picture, Image.new("RGB", picture.size, colour), 0.7).save(file := io.BytesIO(), "PNG")
    return file.getvalue()


COLOURS = {"red": "red", "blue": "blue", "lime": "lime", "grey": "grey"}
PNGS = {name: base64.b64encode(png(colour)).decode() for name, colour in COLOURS.items()}


def part(name):
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNGS[name]}"}}


def asked(*names, text="What is it?"):
    return [{"role": "user", "content": [*map(part, names), {"type": "text", "text": text}]}]


def mixed(count):
    """Texts, pictures, several, and further turns about the same ones."""
    names, made = list(COLOURS), []
    for number in range(count):
        seen = [names[(number + place) % 4] for place in range(number % 3)]
        messages = asked(*seen, text=TEXT[: 5 + number % 40])
        if number % 4 == 3:
            messages += [{"role": "assistant", "content": "A ring."}, *asked(names[number % 4], text="And this?")]
        made.append(messages)
    return made


def together_and_alone(url, conversations):
    """Returns the ids of the answers to all at once, then to each after the other."""
    settings = {"model": "sees", "temperature": 0, "max_completion_tokens": 8}

    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=300) as client:

            async def one(messages):
                answer = await client.chat.completions.create(
                    messages=messages, extra_body={"return_token_ids": True}, **settings
                )
                return answer.choices[0].model_extra["token_ids"]

            together = await asyncio.gather(*map(one, conversations))
            return together, [await one(messages) for messages in conversations]

    return asyncio.run(ask())


def test_mixed_requests_get_what_each_gets_alone(serving):
    before = {name: serving.number(f"vllm:{name}_total") for name in ("prefix_cache_hits", "pictures_encoded")}
    together, alone = together_and_alone(serving.said["url"], mixed(16))
    assert together == alone
    assert len(set(map(tuple, alone))) > 8
    # The second time nothing is new, whatever pages were evicted meanwhile.
    assert serving.number("vllm:prefix_cache_hits_total") > before["prefix_cache_hits"]
    assert serving.number("vllm:pictures_encoded_total") == before["pictures_encoded"] + len(COLOURS)


@pytest.mark.nightly
def test_a_hundred_mixed_requests(serving):
    together, alone = together_and_alone(serving.said["url"], mixed(100))
    assert together == alone


def test_every_interface_gives_the_same_answer(serving, folder, capsys):
    url, name = serving.said["url"], "red"
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        chat = client.chat.completions.create(
            model="sees", messages=asked(name), temperature=0, max_completion_tokens=8,
            extra_body={"return_token_ids": True},
        )  # fmt: skip
        content = [{"type": "input_text", "text": "What is it?"}]
        content.append({"type": "input_image", "detail": "auto", "image_url": part(name)["image_url"]["url"]})
        items = [{"role": "user", "content": content}]
        response = client.responses.create(model="sees", input=items, temperature=0, max_output_tokens=8)
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNGS[name]}}
    blocks = [{"role": "user", "content": [block, {"type": "text", "text": "What is it?"}]}]
    with anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as client:
        message = client.messages.create(model="sees", messages=blocks, max_tokens=8, extra_body={"temperature": 0})
    file, text = str(folder.parent / f"{name}.png"), chat.choices[0].message.content
    assert response.output_text == message.content[0].text == text
    opened = kn.open(folder)
    made = opened.generate("What is it?", pictures=[file], temperature=0.0, max_tokens=8)
    wanted = chat.choices[0].model_extra["token_ids"]
    assert made.token_ids[: len(wanted)] == wanted
    array = np.asarray(Image.open(file))
    both = opened.generate(["What is it?"] * 2, pictures=[[array], [png("blue")]], temperature=0.0, max_tokens=8)
    assert both[0].token_ids == made.token_ids != both[1].token_ids
    options = ("--prompt", "What is it?", "--picture", file, "--temperature", "0", "--max-tokens", "8", "--json")
    capsys.readouterr()
    assert main(["generate", str(folder), *options]) == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == made.token_ids
    # The model's own whole forward.
    mark = opened.config.model.image_token_id
    spoken = opened.tokenizer.encode("USER: <image>\nWhat is it? ASSISTANT:")
    ids = np.repeat(spoken, np.where(spoken == mark, PATCHES, 1)).tolist()
    assert chat.usage.prompt_tokens == len(ids)
    pixels = pixels_of(png(COLOURS[name]), (SIDE, SIDE, 3), 10**6)[None]
    predict = jax.jit(kn.functional(opened.model, "predict"))
    for token in wanted:
        padded = np.zeros((1, 64), np.int32)
        padded[0, : len(ids)] = ids
        logits, _ = predict(opened.params, {}, padded, pixels)
        assert int(np.argmax(logits[0, len(ids) - 1])) == token
        ids.append(token)


@pytest.mark.nightly
def test_a_talk_about_pictures(folder, serving):
    file = folder.parent / "red.png"
    said = f"What is it?\n/picture {folder.parent / 'blue.png'}\n/picture no.png\nAnd this?\n"
    command = [KANAWA, "chat", str(folder), "--picture", str(file), "--temperature", "0", "--max-tokens", "8", "--json"]
    done = subprocess.run(command, input=said, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert "no.png: No such file" in done.stderr
    turns = [*asked("red"), {"role": "assistant", "content": first["answer"]}, *asked("blue", text="And this?")]
    for messages, answer in ((asked("red"), first), (turns, second)):
        body = {"messages": messages, "temperature": 0, "max_completion_tokens": 8}
        whole = serving.http.post("/v1/chat/completions", json=body).json()
        assert whole["choices"][0]["message"]["content"] == answer["answer"]


def test_pictures_are_refused_where_they_cant_be_seen(serving, folder):
    messages = asked("red", text="<image>")
    answer = serving.http.post("/v1/chat/completions", json={"messages": messages})
    assert answer.status_code == 400
    assert "there are 1 pictures, and 2 places for them" in answer.json()["error"]["message"]
    with pytest.raises(UsageError, match="config.json: no picture: it begins with"):
        kn.open(folder).generate("a", pictures=[folder / "config.json"])
