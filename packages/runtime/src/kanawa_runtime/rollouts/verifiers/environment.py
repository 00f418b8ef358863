"""An environment of `verifiers`, as its package runs it: tasks are records, episodes are interactions and rewards."""

import asyncio
import importlib
import json
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kanawa.config import REQUIRED, Positive
from kanawa.errors import KanawaError, UsageError

from kanawa_runtime.data.chats.messages import messages_of
from kanawa_runtime.data.chats.template import ChatTemplate, template_of, turns
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.records.record import Record, Records
from kanawa_runtime.rollouts.interaction import Interaction, Turn
from kanawa_runtime.rollouts.prompts import Asked
from kanawa_runtime.rollouts.rewards import Rollout
from kanawa_runtime.rollouts.verifiers.endpoint import Endpoint, Session


class EpisodeError(KanawaError):
    """An environment failed, asked for something else than its task's prompt, or took too long."""


def load(taskset: str, arguments: str) -> tuple[Any, Any]:
    """Returns the package and its environment; raises UsageError where either is missing or refuses the arguments."""
    try:
        package = importlib.import_module("verifiers.v1")
    except ImportError as error:
        message = f'environments of verifiers need its package: pip install "kanawa-runtime[verifiers]" ({error})'
        raise UsageError(message) from error
    try:
        own = json.loads(arguments or "{}")
        # Without sandboxes of a service, and without tools that no row's prompt names.
        agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
        usual = {} if "agent" in own or "id" in own else {"agent": agent}
        named = {**usual, **own, "taskset": {**own.get("taskset", {}), "id": taskset}}
        return package, package.load_environment(package.resolve_env_config(named))
    except Exception as error:  # An unknown environment may raise anything.
        message = f"the verifiers environment {taskset!r} can't be loaded: {type(error).__name__}: {error}"
        raise UsageError(message) from error


class VerifiersTasks(Records):
    """The tasks of an environment: `messages`, those its agent begins with, and `task`, the number."""

    class Config(Records.Config):
        #: The environment's name, as `vf-eval` takes it.
        taskset: str = REQUIRED
        #: More of the environment's config, a JSON object; without `agent` and `id` its agent is the plain one, here.
        arguments: str = ""

    def read(self) -> Iterator[Record]:
        """Yields a record a task; raises CorpusError for a task without a prompt."""
        environment = load(self.config.taskset, self.config.arguments)[1]
        for number, task in enumerate(_tasks(environment)):
            prompt, system = task.data.prompt, task.data.system_prompt
            if prompt is None:
                message = (
                    f"{self.config.taskset}#{number}: the task has no prompt: its user speaks first, which no row can"
                )
                raise CorpusError(message)
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(map(_plain, prompt))
            if system is not None:
                messages.insert(0, {"role": "system", "content": system})
            yield Record(f"{self.config.taskset}#{number}", {"messages": messages, "task": number})


class VerifiersInteraction(Interaction):
    """Plays a task as its environment does: every request of its agent is a turn of the policy.

    The environment runs as it is, in its own processes where it has some, and asks an endpoint of this one.
    """

    class Config(Interaction.Config):
        taskset: str = REQUIRED
        arguments: str = ""
        #: The longest that an environment may take for a step of its own.
        seconds: Positive = 600.0

    def __init__(self, cfg: "VerifiersInteraction.Config") -> None:
        super().__init__(cfg)
        self._thread: threading.Thread | None = None
        self._began = threading.Event()
        self._failure: BaseException | None = None
        self._open: set[Session] = set()

    def prepare(self, tokenizer: Any) -> None:
        """Loads the environment and serves; raises UsageError without a chat template."""
        self._template: ChatTemplate = template_of({} if tokenizer is None else tokenizer.folder_files())
        self._tokenizer = tokenizer
        if not self._template.own:
            message = "an environment of verifiers speaks in messages, and the policy's folder has no chat template"
            raise UsageError(message)
        self._package, self._environment = load(self.config.taskset, self.config.arguments)
        self._tasks = list(_tasks(self._environment))
        self._endpoint = Endpoint()
        client = self._package.EvalClientConfig(base_url=self._endpoint.address, api_key_var="KANAWA_ENDPOINT_KEY")
        self._context = self._package.ModelContext(model="policy", client=client)
        self._thread = threading.Thread(target=self._run, name="kanawa-verifiers", daemon=True)
        self._thread.start()
        if not self._began.wait(self.config.seconds) or self._failure is not None:
            why = self._failure or f"it didn't begin in {self.config.seconds:g} s"
            message = f"the verifiers environment {self.config.taskset!r} failed: {why}"
            raise EpisodeError(message) from self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - an unknown environment may raise anything, SystemExit too
            self._failure = error
        finally:
            self._began.set()
            for session in list(self._open):
                session.events.put(("failed", self._failure or RuntimeError("the run has ended")))

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        async with self._environment.serving():
            self._began.set()
            await self._ended.wait()

    def begin(self, asked: Asked) -> "Play":
        """Starts the task's episode."""
        if "task" not in asked.record:
            message = "the data aren't the environment's tasks; give --data verifiers:taskset=NAME"
            raise EpisodeError(message)
        task, session = self._tasks[int(asked.record["task"])], Session()
        self._open.add(session)

        async def run() -> None:
            try:
                register = lambda trace: self._endpoint.register(str(trace.id), session)  # noqa: E731
                session.events.put(
                    ("done", await self._environment.run_episode(task, self._context, on_trace=register))
                )
            except Exception as error:  # An unknown environment may raise anything.
                session.events.put(("failed", error))
            finally:
                self._endpoint.forget(session)
                self._open.discard(session)

        asyncio.run_coroutine_threadsafe(run(), self._loop)
        return Play(session, _spoken(messages_of(asked.record["messages"], "messages")), self.config.seconds)

    def reply(self, episode: "Play", turn: Turn) -> str | None:
        """Answers the environment with a turn; returns what its next request adds, None where it makes none."""
        request = episode.request()
        if request is None:
            return None
        if not episode.answered and (_spoken(request["messages"]) != episode.prompt or request.get("tools")):
            tools = " and tools" if request.get("tools") else ""
            message = (
                f"the verifiers environment {self.config.taskset!r} asks with other messages{tools} than its task's "
                f"prompt: {str(request['messages'])[:300]}; choose a harness that adds none (agent.harness.id=null)"
            )
            raise EpisodeError(message)
        episode.answer(turn.text)
        following = episode.request()
        return None if following is None else self._added(request["messages"], turn, following)

    def _added(self, before: Sequence[Any], turn: Turn, request: Mapping[str, Any]) -> str:
        """Returns what the template writes between the policy's answer and its next turn."""
        messages = request["messages"]
        count = len(before) + 1
        if _spoken(messages[: count - 1]) != _spoken(before) or messages[count - 1].get("role") != "assistant":
            message = f"the verifiers environment {self.config.taskset!r} rewrote the turns before its next request"
            raise EpisodeError(message)
        spoken = messages_of(list(map(_plain, messages)), "messages")
        opened, after = (
            self._template.render(turns(some, add_generation_prompt=True)) for some in (spoken[: count - 1], spoken)
        )
        rest = after.removeprefix(opened)
        said = next((text for text in (turn.text, turn.text.strip()) if rest.startswith(text)), None)
        if not after.startswith(opened) or said is None:
            message = "the policy's chat template rewrites earlier turns, so that a row can't hold several"
            raise EpisodeError(message)
        last = turn.ids[-1] if turn.ids else None
        stop = self._tokenizer.special_names.get(last, "") if last in self._tokenizer.stop_ids else ""
        return rest.removeprefix(said).removeprefix(stop)

    def close(self) -> None:
        """Ends the environment and its endpoint."""
        if self._thread is None:
            return
        self._endpoint.close()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(self.config.seconds)


class Play:
    """One episode under way, for the interaction and the reward."""

    def __init__(self, session: Session, prompt: list[tuple[str, str]], seconds: float) -> None:
        self._session, self.prompt, self._seconds = session, prompt, seconds
        self.answered = 0
        self._pending: Any = None
        self._episode: Any = None

    def request(self) -> Any:
        """Returns the request that waits for an answer, once there is one; None where the episode has ended."""
        if self._pending is None and self._episode is None:
            try:
                kind, value = self._session.events.get(timeout=self._seconds)
            except queue.Empty as error:
                message = f"the verifiers environment did nothing for {self._seconds:g} s"
                raise EpisodeError(message) from error
            if kind == "failed":
                message = f"the verifiers environment raised {type(value).__name__}: {value}"
                raise EpisodeError(message) from value
            self._pending, self._episode = (value, None) if kind == "asked" else (None, value)
        return self._pending

    def answer(self, text: str | None) -> None:
        """Answers it; None says that there is no room for another turn."""
        self._pending = None
        self.answered += text is not None
        self._session.answer(text)

    def ended(self) -> Any:
        """Returns the episode, ended where it isn't: a row that is full has no further turn."""
        while self.request() is not None:
            self.answer(None)
        return self._episode


def environment_reward(rollout: Rollout) -> float:
    """Returns the reward that the environment gave an episode: the sum over the traces of its agents.

    Raises EpisodeError for an episode that ended with errors of the environment and scored nothing.
    """
    episode = rollout.episode.ended()
    scored = [trace for trace in episode.traces if trace.rewards]
    if not scored and episode.errors:
        message = f"the verifiers environment failed: {episode.errors[-1].message}"
        raise EpisodeError(message)
    return float(sum(trace.reward for trace in scored))


def _tasks(environment: Any) -> Iterator[Any]:
    if not environment.taskset.bounded:
        message = "the taskset has no end: name some of its tasks in arguments, such as a closed range"
        raise CorpusError(message)
    return iter(environment.taskset)


def _plain(message: Any) -> Any:
    return message if isinstance(message, Mapping) else message.model_dump(exclude_none=True)


def _spoken(messages: Sequence[Any]) -> list[tuple[str, str]]:
    """Returns who says what."""
    return [(message["role"], message["content"]) for message in messages_of(list(map(_plain, messages)), "messages")]
