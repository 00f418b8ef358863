"""A tiny package with the protocol of `verifiers.v1`: one taskset, whose environment asks until the word is right."""

import asyncio
import contextlib
import json
import sys
import types
import urllib.error
import urllib.request
import uuid
from types import SimpleNamespace


class Guessing:
    """Asks for a word, and says what is wrong until it is right; the system prompt and each task are the taskset's."""

    def __init__(self, config):
        self.config, self.is_serving = config, False
        words = [("say red", "red"), ("say blue", "blue")]
        tasks = [SimpleNamespace(data=SimpleNamespace(prompt=prompt, system_prompt="be brief"), word=word)
                 for prompt, word in words]  # fmt: skip
        self.taskset = type("Taskset", (list,), {"bounded": True})(tasks)

    @contextlib.asynccontextmanager
    async def serving(self):
        self.is_serving = True
        yield
        self.is_serving = False

    async def run_episode(self, task, context, *, on_trace):
        assert self.is_serving
        trace = SimpleNamespace(id=uuid.uuid4().hex, rewards={}, reward=0.0)
        on_trace(trace)
        episode = SimpleNamespace(traces=[trace], errors=[])
        messages = [{"role": "system", "content": self.config.get("system", "be brief")},
                    {"role": "user", "content": task.data.prompt}]  # fmt: skip
        for turn in range(3):
            try:
                said = await asyncio.to_thread(self._asked, context, messages, trace.id, stream=turn % 2 == 1)
            except urllib.error.HTTPError as error:
                with error:
                    assert json.load(error)["error"]["code"] == "context_length_exceeded"
                break
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"not {said}, again"}]
            trace.rewards["right"] = trace.reward = float(said.strip() == task.word) - 0.1 * turn
            if said.strip() == task.word:
                break
        return episode

    def _asked(self, context, messages, name, *, stream):
        body = json.dumps({"model": context.model, "messages": messages, "stream": stream}).encode()
        request = urllib.request.Request(f"{context.client.base_url}/chat/completions", body, {"X-Session-ID": name})
        with urllib.request.urlopen(request, timeout=30) as answer:
            content = answer.read().decode()
        if not stream:
            return json.loads(content)["choices"][0]["message"]["content"]
        first, last = (line.removeprefix("data: ") for line in content.split("\n\n")[:2])
        assert last == "[DONE]"
        return json.loads(first)["choices"][0]["delta"]["content"]


load_environment, resolve_env_config = Guessing, dict
EvalClientConfig = ModelContext = SimpleNamespace


def install(monkeypatch):
    """Puts this module in place of the package."""
    monkeypatch.setitem(sys.modules, "verifiers", types.ModuleType("verifiers"))
    monkeypatch.setitem(sys.modules, "verifiers.v1", sys.modules[__name__])
