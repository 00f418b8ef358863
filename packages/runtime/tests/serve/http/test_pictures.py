"""Pictures in chats before a scripted engine: what the engine gets, in every protocol, and what is refused where."""

import base64
import http.server
import io
import json
import threading

import anthropic
import numpy as np
import openai
import pytest
from kanawa.contracts import PictureTokens
from kanawa_runtime.data.chats.picture_marks import PictureMarks
from kanawa_runtime.data.chats.template import template_of
from kanawa_runtime.data.images.model_pixels import pixels_of
from PIL import Image

from .running_server import BYTES, model_of, running_server
from .scripted_engine import ScriptedEngine

TOKENS = PictureTokens(259, 4, (6, 6, 3))
LIMITS = {"max_pictures": 3, "max_picture_pixels": 1000, "max_picture_bytes": 20_000}
PLACE = [TOKENS.token_id] * TOKENS.num_tokens


def png(colour, size=(12, 9), kind="PNG"):
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, kind)
    return file.getvalue()


def data_url(content):
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


RED, BLUE = png("red"), png("blue", kind="JPEG")
PIXELS = [pixels_of(content, TOKENS.shape, 10**6) for content in (RED, BLUE)]


def served(engine, template=None):
    template = template or template_of({})
    return model_of(engine, template=template, pictures=PictureMarks(TOKENS, template, BYTES))


@pytest.fixture(scope="module")
def sees():
    engine = ScriptedEngine()
    with running_server(model=served(engine), **LIMITS) as running:
        yield running


def asked_of(sees):
    """Returns the ids and pixels of what the engine was asked last."""
    request = sees.engine.submitted[-1]
    return list(request.prompt_ids), [picture.pixels for picture in request.pictures]


def ids(*parts):
    return [BYTES.bos_id, *(i for part in parts for i in (PLACE if part is None else part.encode()))]


def part(url, **more):
    return {"type": "image_url", "image_url": {"url": url, **more}}


def text(content):
    return {"type": "text", "text": content}


def test_chats_of_the_official_client(sees):
    content = [text("a"), part(data_url(RED), detail="high"), text("b"), part(data_url(BLUE)), text("c")]
    with openai.OpenAI(base_url=f"{sees.url}/v1", api_key="x", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": content}], max_completion_tokens=3
        )
    assert answer.choices[0].message.content == "abc"
    found, pixels = asked_of(sees)
    assert found == ids("a", None, "b", None, "c\n")
    assert answer.usage.prompt_tokens == len(found)
    np.testing.assert_array_equal(pixels, PIXELS)


def test_responses_of_the_official_client(sees):
    content = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": data_url(RED), "detail": "low"},
    ]
    called = {"type": "function_call", "call_id": "c", "name": "draw", "arguments": "{}"}
    drawn = {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"type": "input_image", "image_url": data_url(BLUE)}],
    }
    with openai.OpenAI(base_url=f"{sees.url}/v1", api_key="x", max_retries=0) as client:
        client.responses.create(
            model="scripted", input=[{"role": "user", "content": content}, called, drawn], max_output_tokens=3
        )
        found, pixels = asked_of(sees)
        assert found == ids("a", None, "\n\n", None, "\n")
        np.testing.assert_array_equal(pixels, PIXELS)
        bad = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}]
        with pytest.raises(openai.BadRequestError, match="no picture: it begins with") as caught:
            client.responses.create(model="scripted", instructions="Be brief.", input=bad)
        assert caught.value.param == "input[0].content[0].image_url"


def test_messages_of_the_official_client(sees):
    def block(content):
        source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(content).decode()}
        return {"type": "image", "source": source}

    use = {"type": "tool_use", "id": "c", "name": "draw", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [text("d"), block(BLUE)]}
    messages = [
        {"role": "user", "content": [block(RED), text("a")]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [text("e"), result]},
    ]
    with anthropic.Anthropic(base_url=sees.url, api_key="x", max_retries=0) as client:
        answer = client.messages.create(model="scripted", max_tokens=3, messages=messages)
        found, pixels = asked_of(sees)
        # Results answer what was called before, whatever is said besides.
        assert found == ids(None, "a\n\n", "d", None, "\ne\n")
        np.testing.assert_array_equal(pixels, PIXELS)
        assert answer.usage.input_tokens == len(found)
        assert client.messages.count_tokens(model="scripted", messages=messages).input_tokens == len(found)
        bad = [*messages[:2], {"role": "user", "content": [result, block(b"GIF89a")]}]
        with pytest.raises(anthropic.BadRequestError, match=r"messages\[2\].content\[1\].source: "):
            client.messages.create(model="scripted", system="Be brief.", max_tokens=3, messages=bad)


def test_a_template_of_parts_and_one_of_texts(sees):
    """LLaVA's templates list parts and have no use for a text; others join texts."""
    parts = (
        "{% for m in messages %}{{ m.role }}:{% for c in m.content if c.type == 'image' %}I{% endfor %}"
        "{% for c in m.content if c.type == 'text' %}{{ c.text }}{% endfor %};{% endfor %}"
    )
    marks = PictureMarks(TOKENS, template_of({}), BYTES)
    settings = b'{"chat_template": %s}'
    own = template_of({"tokenizer_config.json": settings % _json(parts.replace("I", marks.mark))})
    made = PictureMarks(TOKENS, own, BYTES)
    made.mark = marks.mark
    messages = [{"role": "user", "content": [{"type": "image"}, text("a")]}, {"role": "assistant", "content": "b"}]
    rendered = own.render({"messages": made.for_template(messages)})
    assert rendered == f"user:{marks.mark}a;assistant:b;"
    joined = template_of(
        {"tokenizer_config.json": settings % _json("{% for m in messages %}{{ m.content }};{% endfor %}")}
    )
    made = PictureMarks(TOKENS, joined, BYTES)
    assert joined.render({"messages": made.for_template(messages)}) == f"{made.mark}a;b;"


def _json(value):
    return json.dumps(value).encode()


def test_tokenize_counts_them(sees):
    answer = sees.post("/tokenize", {"messages": [{"role": "user", "content": [part(data_url(RED)), text("a")]}]})
    assert answer.json()["tokens"] == ids(None, "a\n")


def refused(sees, *content, **body):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": [text("a"), *content]}]
    error = sees.refused(400, "/v1/chat/completions", **{"messages": messages, **body})
    return error["param"], error["message"]


CUT = data_url(png("red", (30, 30))[:60])
BOMB = data_url(png("red", (40, 30)))
LONG = data_url(np.random.default_rng(0).bytes(21_000))
AT = "messages[1].content[1].image_url"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (data_url(b"hello, world"), "no picture: it begins with b'hello, w'"),
        (CUT, "damaged or cut off"),
        (BOMB, "40 x 30 pixels, more than max_picture_pixels=1,000"),
        (LONG, "it has more than 20,000 bytes (max_picture_bytes)"),
        ("data:image/png;base64,%%%", "its data URL isn't base64"),
        ("data:image/png,abc", "is no data URL in base64"),
        ("data:image/png;base64,", "the file is empty"),
        ("", "is no data URL"),
        ("file:///etc/passwd", "'file:///etc/passwd' is no data URL"),
        ("/etc/passwd", "is no data URL"),
        ("http://127.0.0.1:1/a.png", "this server fetches no pictures from '127.0.0.1' (server.picture_hosts)"),
        ("https://example.org/a.png", "this server fetches no pictures from 'example.org'"),
        ("http://[bad/a.png", "this server fetches no pictures from"),
    ],
)
def test_a_bad_picture_is_refused_with_its_place(sees, url, says):
    before = len(sees.engine.submitted)
    param, message = refused(sees, part(url))
    assert (param, message.startswith(AT)) == (AT, True)
    assert says in message
    assert len(sees.engine.submitted) == before


def test_what_else_cant_be(sees):
    several = [part(data_url(RED)) for _ in range(4)]
    param, message = refused(sees, *several)
    assert param == "messages[1].content[4].image_url"
    assert "picture 4 of 4, and a request may have 3 (max_pictures)" in message
    messages = [{"role": "assistant", "content": [part(data_url(RED))]}]
    param, message = refused(sees, messages=messages)
    assert "a picture belongs to a message of the user or of a tool, and this is one of the assistant" in message
    param, message = refused(sees, part(data_url(RED)), truncate_prompt_tokens=3)
    assert (param, "isn't cut" in message) == ("truncate_prompt_tokens", True)
    param, message = refused(sees, {"type": "video_url", "video_url": {"url": "x"}})
    assert "Input should be a part of type text or image_url" in message
    # Its token as an id, where there is no picture.
    error = sees.refused(400, prompt=[97, *PLACE])
    assert "there are 0 pictures, and 1 places" in error["message"]


def test_pictures_of_an_allowed_host():
    class Files(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            found = {"/red.png": RED, "/long.png": b"x" * 30_000}.get(self.path)
            self.send_response(302 if self.path == "/away" else 200 if found else 404)
            if self.path == "/away":
                self.send_header("Location", "/red.png")
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, *_):
            pass

    files = http.server.HTTPServer(("127.0.0.1", 0), Files)
    thread = threading.Thread(target=files.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{files.server_port}"
    try:
        with running_server(model=served(ScriptedEngine()), picture_hosts=("127.0.0.1",), **LIMITS) as running:
            messages = [{"role": "user", "content": [part(f"{url}/red.png")]}]
            answer = running.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
            assert answer.status_code == 200, answer.text
            np.testing.assert_array_equal(asked_of(running)[1], PIXELS[:1])
            for path, says in [
                ("away", "HTTP Error 302"),
                ("none", "HTTP Error 404"),
                ("long.png", "max_picture_bytes"),
            ]:
                assert says in refused(running, part(f"{url}/{path}"))[1]
            assert "fetches no pictures from 'localhost'" in refused(running, part("http://localhost/red.png"))[1]
    finally:
        files.shutdown()
        files.server_close()
        thread.join()
