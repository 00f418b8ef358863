"""The detached actor that keeps a gang of members running after the submitting process has ended."""

import contextlib
import json
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from kanawa_runtime.exit_codes import SIGNAL_BASE, STOPPED, gang_code, verdict
from kanawa_runtime.launch.job import job_of, processes
from kanawa_runtime.launch.launcher import ENDED
from kanawa_runtime.launch.local.rank import Rank, free_port
from kanawa_runtime.launch.restarts import Restarts

NAMESPACE = "kanawa"
_POLL_SECONDS = 0.2
#: What a member whose host is gone ended with.
_LOST = SIGNAL_BASE + signal.SIGKILL


class Gang:
    """Runs the attempts of a job on placement groups of Ray; `local/supervisor.py` does it on one machine.

    Where the host of this actor is lost, Ray restarts it elsewhere, and it resumes from what it stored in the cluster.
    """

    def __init__(self, job: dict[str, Any], bundles: list[dict[str, float]], settings: dict[str, Any]) -> None:
        self._record = job
        self._job = job_of(job)
        self._bundles = bundles
        self._settings = settings
        self._stopping = False
        self._facts: dict[str, Any] = {"state": "queued", "restarts": 0, "stops": 0, "exit_code": None, "detail": ""}
        self._said = ""
        self._members: list[Any] = []
        self._restarts = Restarts(self._job.retries, settings["backoff_seconds"], settings["most_backoff_seconds"])
        self._was_lost = self._recall()
        if self._facts["state"] not in ENDED:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def status(self) -> dict[str, Any]:
        """Returns the fields of a Status."""
        return dict(self._facts)

    def logs(self) -> str:
        """Returns the newest of what the first process wrote."""
        return self._said

    def pids(self) -> list[int]:
        """Returns the processes of the attempt that runs, each on its host."""
        return list(self._facts.get("pids", ()))

    def stop(self) -> None:
        """Asks the gang to save and end; returns at once."""
        self._stopping = True
        self._keep()

    def _run(self) -> None:
        try:
            code = self._attempts()
            meaning = verdict(code)
            state = "done" if meaning == "done" else "cancelled" if self._stopping and meaning == "retry" else "failed"
            self._facts |= {"state": state, "exit_code": code}
        except Exception as error:  # noqa: BLE001 - a watcher gets the message; this thread's traceback is seen nowhere
            self._facts |= {"state": "failed", "detail": f"{type(error).__name__}: {error}"}
        self._facts.pop("pids", None)
        self._keep()

    def _recall(self) -> bool:
        """Takes up what the actor before this one kept, if there was one; returns whether it was lost at work."""
        import ray

        before = last_record(self._job.name) if ray.get_runtime_context().was_current_actor_reconstructed else None
        if before is None:
            self._keep()
            return False
        self._facts, self._said, self._stopping = before["facts"], before["said"], before["stopping"]
        self._restarts.lost, self._restarts.stops = self._facts["restarts"], self._facts["stops"]
        return True

    def _keep(self) -> None:
        facts = {name: value for name, value in self._facts.items() if name != "pids"}
        keep(self._job.name, {"facts": facts, "said": self._said, "stopping": self._stopping})

    def _attempts(self) -> int:
        restarts = self._restarts
        while True:
            began = time.monotonic()
            # The members of an actor that was lost were lost with it.
            codes = [_LOST] if self._was_lost else self._attempt()
            self._was_lost = False
            delay = None if self._stopping else restarts.after(codes, time.monotonic() - began)
            if delay is None:
                return gang_code(codes)
            self._facts |= {"state": "restarting", "restarts": restarts.lost, "stops": restarts.stops}
            self._keep()
            deadline = time.monotonic() + delay
            while time.monotonic() < deadline:
                if self._stopping:
                    return STOPPED
                time.sleep(_POLL_SECONDS)

    def _attempt(self) -> list[int]:
        """Runs all processes to their end and returns their codes; no actor of the attempt is left."""
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group

        group = placement_group(self._bundles, strategy="STRICT_SPREAD" if len(self._bundles) > 1 else "PACK")
        self._members = []
        try:
            while not group.wait(timeout_seconds=_POLL_SECONDS):
                self._facts |= {"detail": f"waiting for {len(self._bundles)} hosts with {self._bundles[0]}"}
                if self._stopping:
                    return [STOPPED]
            self._members = [self._member(group, index) for index in range(processes(self._job))]
            return self._see_through()
        except (ray.exceptions.RayError, TimeoutError):
            return [_LOST]
        finally:
            self._end_members()
            remove_placement_group(group)

    def _member(self, group: Any, index: int) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        host = index // self._job.processes_per_host
        bundle = self._bundles[host]
        share = self._job.processes_per_host
        others = {name: amount / share for name, amount in bundle.items() if name not in ("CPU", "GPU")}
        return (
            ray.remote(Member)
            .options(
                num_cpus=bundle.get("CPU", 0) / share,
                num_gpus=bundle.get("GPU", 0) / share,
                resources=others,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=host),
                runtime_env=self._settings["runtime_env"],
            )
            .remote(self._record)
        )

    def _see_through(self) -> list[int]:
        """Returns the codes once all have ended, or the time of those that are left is over."""
        import ray

        attempt = self._facts["restarts"] + self._facts["stops"] + 1
        coordinator = ray.get(self._members[0].address.remote())
        starts = [member.start.remote(index, coordinator, attempt) for index, member in enumerate(self._members)]
        self._facts |= {"pids": ray.get(starts), "state": "running", "detail": ""}
        deadline, has_asked = float("inf"), False
        while True:
            codes = [_call(member.code) for member in self._members]
            said = _call(self._members[0].said) if codes[0] != _LOST else None
            # Not of one that is gone: what it said last is what tells why.
            self._said = said if isinstance(said, str) else self._said
            if all(code is not None for code in codes):
                return [int(code) for code in codes if code is not None]
            if self._stopping and not has_asked:
                has_asked, deadline = True, time.monotonic() + self._job.grace_seconds
                for member in self._members:
                    _call(member.signal, signal.SIGTERM)
            if any(codes) and not self._stopping:
                deadline = min(deadline, time.monotonic() + self._settings["settle_seconds"])
            if time.monotonic() > deadline:
                return [_LOST if code is None else code for code in codes]
            time.sleep(_POLL_SECONDS)

    def _end_members(self) -> None:
        import ray

        for member in self._members:
            _call(member.end)
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(member)


class Member:
    """The actor of one process of a job, on a host of the placement group. Neither outlives the other."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job_of(job)
        self._rank: Rank | None = None

    def address(self) -> str:
        """Returns where the first process of a gang can be reached by the others."""
        import ray

        return f"{ray.util.get_node_ip_address()}:{free_port()}"

    def start(self, index: int, coordinator: str, attempt: int) -> int:
        """Starts process `index`; returns its id on this host."""
        folder = Path(tempfile.mkdtemp(prefix=f"kanawa-{self._job.name}-"))
        self._rank = Rank(self._job, index, coordinator, attempt, folder / f"attempt-{attempt}-rank-{index}.log")
        self._rank.listen()
        return self._rank.pid

    def code(self) -> int | None:
        """Returns the exit code as a shell reports it, None while the process runs."""
        return None if self._rank is None else self._rank.poll()

    def signal(self, number: int) -> None:
        """Sends the process a signal, unless it has ended."""
        if self._rank is not None:
            self._rank.send_signal(number)

    def end(self) -> int:
        """Ends the process by force, with all it started; returns its code."""
        return 0 if self._rank is None else self._rank.kill()

    def said(self) -> str:
        """Returns the end of what the process wrote."""
        return "" if self._rank is None else self._rank.end()


def _call(method: Any, *arguments: Any) -> Any:
    """Returns what a member answers; one that is gone answers as a killed process would."""
    import ray

    try:
        return ray.get(method.remote(*arguments), timeout=60)
    except (ray.exceptions.RayError, TimeoutError):
        return _LOST


def keep(name: str, record: dict[str, Any]) -> None:
    """Keeps how a job stands in the cluster's own store, where it outlives the job's actors."""
    from ray.experimental import internal_kv

    text = json.dumps(record).encode()
    internal_kv._internal_kv_put(name.encode(), text, overwrite=True, namespace=NAMESPACE.encode())


def last_record(name: str) -> dict[str, Any] | None:
    """Returns a job's last state: {"facts", "said", "stopping"}; None where the cluster has had none of its name."""
    from ray.experimental import internal_kv

    record = internal_kv._internal_kv_get(name.encode(), namespace=NAMESPACE.encode())
    return None if record is None else json.loads(record)
