"""The pods of a JobSet as processes of this machine: its manifest alone forms the gang, and brings it back."""

import pathlib
import socket
import subprocess
import time

import pytest
from kanawa_runtime.exit_codes import shell_code
from kanawa_runtime.launch import Job
from kanawa_runtime.launch.kubernetes.launcher import JobSetLauncher
from kanawa_runtime.train.events import read_events, step_records
from nursery import Nursery

STEPS = 32
SECONDS = 400


def manifest(run, **fields):
    command = ["kanawa", "train", "tiny-lm", "--run", str(run), "--steps", str(STEPS)]
    command += ["--set", "checkpoints.every_steps=4", *fields.pop("more", ())]
    job = Job(
        name="pods",
        command=command,
        target="cpu-4",
        slices=2,
        hosts_per_slice=2,
        image="any",
        run=str(run),
        resources={"cpu": "1"},
        **fields,
    )
    adapter = JobSetLauncher.Config(claims={str(run.parent): "shared"}).build()
    adapter.check(job)
    return adapter.manifest(job)


class Cluster:
    """What the JobSet and Job controllers do with a manifest, as far as it asks for it. DNS is this machine."""

    def __init__(self, nursery: Nursery, tree: dict, folder: pathlib.Path) -> None:
        self.nursery, self.spec, self.name, self.folder = nursery, tree["spec"], tree["metadata"]["name"], folder
        self.restarts, self.failures = 0, []
        self.pods = {}

    def start(self) -> None:
        """Creates all Jobs of the set, each with its pods."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        for job in self.spec["replicatedJobs"]:
            for replica in range(job["replicas"]):
                for index in range(job["template"]["spec"]["completions"]):
                    key = (job["name"], replica, index)
                    self.pods[key] = self._pod(job, replica, index)

    def _pod(self, job, replica, index):
        (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
        labels = {"job-index": str(replica), "restart-attempt": str(self.restarts)}
        environment = {"JOB_COMPLETION_INDEX": str(index)}
        for variable in container["env"]:
            path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            label = path.removeprefix("metadata.labels['jobset.sigs.k8s.io/").removesuffix("']")
            environment[variable["name"]] = labels[label] if path else variable["value"]
        shell, flag, line = container["command"]
        # The shell's own reading of the line, without what it would become.
        said = subprocess.run(
            [shell, flag, line.replace("exec kanawa ", "printf '%s\\n' ", 1)],
            env={**environment, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        (port,) = [each["containerPort"] for each in container["ports"]]
        host = f"{self.name}-workers-0-0.{self.spec['network']['subdomain']}:{port}"
        argv = [word.replace(host, f"127.0.0.1:{self.port}") for word in said.splitlines()]
        log = self.folder / f"{self.restarts}-{replica}-{index}.log"
        return self.nursery.start(argv, said=log, environment=environment)

    def run(self, meanwhile=lambda cluster: None) -> str:
        """Returns "Completed" or "Failed"."""
        self.start()
        deadline = time.monotonic() + SECONDS
        while True:
            assert time.monotonic() < deadline, [pod.text()[-500:] for pod in self.pods.values()]
            meanwhile(self)
            codes = {key: pod.poll() for key, pod in self.pods.items()}
            failed = {key: shell_code(code) for key, code in codes.items() if code}
            if failed:
                key, code = next(iter(failed.items()))
                self.failures.append(code)
                if (
                    self._action(key[0], code) == "FailJobSet"
                    or self.restarts >= self.spec["failurePolicy"]["maxRestarts"]
                ):
                    self._delete()
                    return "Failed"
                self._delete()
                self.restarts += 1
                self.start()
            elif all(code == 0 for code in codes.values()):
                return "Completed"
            time.sleep(0.02)

    def _delete(self):
        assert self.spec["failurePolicy"]["restartStrategy"] == "BlockingRecreate"
        for pod in self.pods.values():
            pod.kill()
            pod.wait()

    def _action(self, name, code):
        """Returns what the JobSet does about a pod's code: first the Job's own policy, then the set's rules."""
        (job,) = [each for each in self.spec["replicatedJobs"] if each["name"] == name]
        rules = job["template"]["spec"]["podFailurePolicy"]["rules"]
        permanent = any(code in rule["onExitCodes"]["values"] for rule in rules if rule["action"] == "FailJob")
        assert permanent or job["template"]["spec"]["backoffLimit"] == 0
        reason = "PodFailurePolicy" if permanent else "BackoffLimitExceeded"
        for rule in self.spec["failurePolicy"]["rules"]:
            if reason in rule["onJobFailureReasons"] and name in rule["targetReplicatedJobs"]:
                return rule["action"]
        return "RestartJobSet"


@pytest.fixture(scope="module")
def nursery():
    with Nursery() as started:
        yield started


def losses(run):
    return {step: record["loss"] for step, record in step_records(read_events(run / "events.jsonl")).items()}


@pytest.mark.nightly
def test_two_slices_of_two_hosts_form_a_gang_and_survive_a_killed_pod(nursery, tmp_path):
    run, whole = tmp_path / "killed", tmp_path / "whole"
    struck = []

    def strike(cluster):
        events = read_events(run / "events.jsonl")
        if not struck and any(event["event"] == "checkpoint_committed" for event in events):
            struck.append(cluster.pods["workers", 1, 1])
            struck[0].kill()

    (tmp_path / "logs").mkdir()
    cluster = Cluster(nursery, manifest(run), tmp_path / "logs")
    assert cluster.run(strike) == "Completed"
    assert cluster.restarts == 1 and len(struck) == 1
    (started, again) = [e for e in read_events(run / "events.jsonl") if e["event"] == "run_started"][:2]
    assert again["attempt"] == started["attempt"] + 1
    undisturbed = Cluster(nursery, manifest(whole), tmp_path / "logs")
    assert undisturbed.run() == "Completed" and undisturbed.restarts == 0
    assert losses(run) == losses(whole) and len(losses(run)) == STEPS


@pytest.mark.nightly
def test_what_is_permanent_fails_the_set_at_once(nursery, tmp_path):
    cluster = Cluster(nursery, manifest(tmp_path / "run", more=["--set", "no.such=1"]), tmp_path)
    assert cluster.run() == "Failed"
    assert (cluster.restarts, cluster.failures) == (0, [2])
