"""A server of a run inside a replica of Ray Serve: the same application as `kanawa serve`, behind Ray's own proxies."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kanawa_runtime.launch.job import job_of

#: The application of this replica; a replica has a process of its own.
_SERVED: dict[str, Any] = {}


class Forward:
    """The ASGI application that Ray ships: it has no state, and finds that of its replica."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers a request, or nothing to the messages of a lifespan, which is Ray's."""
        await _SERVED["application"](scope, receive, send)


class Server:
    """One replica. Ray calls the constructor, `check_health` from time to time, and `__del__` once it has drained."""

    # Ray awaits the constructor.
    async def __init__(  # type: ignore[misc]
        self, directory: str, target: str | None, overrides: Sequence[str], host: str
    ) -> None:
        """Takes the address at which Ray's proxies listen: on this machine alone, or for others."""
        from kanawa_runtime.process import prepare_process
        from kanawa_runtime.serve.http.access import Hosts, keys_from
        from kanawa_runtime.serve.http.app import application
        from kanawa_runtime.serve.http.config import serve_config
        from kanawa_runtime.serve.http.from_run import served_model
        from kanawa_runtime.serve.http.service import Service

        prepare_process(serves=True)
        config = serve_config(list(overrides))
        model = served_model(Path(directory), config.engine, target=target)
        self._engine = model.engine
        keys = keys_from(None, None)
        hosts = Hosts(host, config.server.allowed_hosts, with_keys=keys.are_required)
        self._service = Service(model, config.server, keys, hosts)
        _SERVED["application"] = application(self._service)
        # Compiling takes minutes; Ray sends nothing before the constructor is through.
        await asyncio.to_thread(model.engine.start)
        self._service.phase = "ready"

    def check_health(self) -> None:
        """Raises once the engine has failed: Ray replaces the replica."""
        if self._service.current_phase == "failed":
            message = "the engine has failed"
            raise RuntimeError(message)

    def __del__(self) -> None:
        """Stops the engine, so that its thread doesn't keep the process."""
        engine = getattr(self, "_engine", None)
        if engine is not None:
            engine.stop()


def application_of(facts: dict[str, Any]) -> Any:
    """Returns Ray's application of what `render` wrote: replicas of the server behind one ingress."""
    from ray import serve

    job = job_of(facts["job"])
    words = list(job.command)
    overrides = [words[index + 1] for index, word in enumerate(words) if word == "--set"]
    deployment = serve.deployment(**facts["deployment"])(serve.ingress(Forward())(Server))
    return deployment.bind(job.run, job.target if "--on" in words else None, overrides, facts["host"])
