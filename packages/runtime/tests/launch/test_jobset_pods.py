"""The pods of a JobSet as processes of this machine: its manifest alone forms the gang, and brings it back."""

import pathlib
import re
import signal
import subprocess
import time

import pytest
from kanawa_runtime.exit_codes import LOST, STOPPED, shell_code
from kanawa_runtime.launch import Job
from kanawa_runtime.launch.kubernetes.launcher import JobSetLauncher
from kanawa_runtime.runs.events import read_events, step_records
from nursery import Nursery
from ports import free_port

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
    return adapter.manifests(job)[0]


class Cluster:
    """What the JobSet and Job controllers do with a manifest, as far as it asks for it. DNS is this machine."""

    def __init__(self, nursery: Nursery, tree: dict, folder: pathlib.Path) -> None:
        self.nursery, self.spec, self.name, self.folder = nursery, tree["spec"], tree["metadata"]["name"], folder
        self.attempts, self.counted, self.failures = 0, 0, []
        self.pods = {}

    def start(self) -> None:
        """Creates all Jobs of the set, each with its pods."""
        self.port = free_port()
        for job in self.spec["replicatedJobs"]:
            for replica in range(job["replicas"]):
                for index in range(job["template"]["spec"]["completions"]):
                    key = (job["name"], replica, index)
                    self.pods[key] = self._pod(job, replica, index)

    def _pod(self, job, replica, index):
        (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
        labels = {"job-index": str(replica), "restart-attempt": str(self.attempts)}
        environment = {"JOB_COMPLETION_INDEX": str(index)}
        for variable in container["env"]:
            path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            label = path.removeprefix("metadata.labels['jobset.sigs.k8s.io/").removesuffix("']")
            environment[variable["name"]] = labels[label] if path else expanded(variable["value"], environment)
        shell, flag, line = (expanded(word, environment) for word in container["command"])
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
        log = self.folder / f"{self.attempts}-{replica}-{index}.log"
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
                action = self._action(key[0], code)
                self._delete()
                if action == "FailJobSet":
                    return "Failed"
                if action == "RestartJobSet":
                    if self.counted >= self.spec["failurePolicy"]["maxRestarts"]:
                        return "Failed"
                    self.counted += 1
                self.attempts += 1
                self.start()
            elif all(code == 0 for code in codes.values()):
                return "Completed"
            time.sleep(0.02)

    def _delete(self):
        assert self.spec["failurePolicy"]["restartStrategy"] == "BlockingRecreate"
        (job,) = self.spec["replicatedJobs"]
        deadline = time.monotonic() + job["template"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        for pod in self.pods.values():
            pod.send_signal(signal.SIGTERM)
        while any(pod.poll() is None for pod in self.pods.values()) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pod in self.pods.values():
            pod.kill()
            pod.wait()

    def _action(self, name, code):
        """Returns what the JobSet does about a pod's code: first the Job's own policy, then the set's rules."""
        (job,) = [each for each in self.spec["replicatedJobs"] if each["name"] == name]
        assert job["template"]["spec"]["backoffLimit"] == 0
        reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        for index, rule in enumerate(job["template"]["spec"]["podFailurePolicy"]["rules"]):
            if code in rule.get("onExitCodes", {}).get("values", ()):
                reason, message = "PodFailurePolicy", f"Container main for pod default/a failed with exit code {code} "
                message += f"matching {rule['action']} rule at index {index}"
                break
        for rule in self.spec["failurePolicy"]["rules"]:
            patterns = rule.get("onJobFailureMessagePatterns", [""])
            is_of = reason in rule["onJobFailureReasons"] and name in rule["targetReplicatedJobs"]
            if is_of and any(re.search(pattern, message) for pattern in patterns):
                return rule["action"]
        return "RestartJobSet"


def expanded(text, variables):
    """Returns a text as the kubelet hands it on: two signs are one, $(NAME) is the variable's value where it is set."""

    def one(match):
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", one, text)


@pytest.fixture(scope="module")
def nursery():
    with Nursery() as started:
        yield started


def losses(run):
    return {step: record["loss"] for step, record in step_records(read_events(run / "events.jsonl")).items()}


@pytest.mark.nightly
def test_two_slices_of_two_hosts_form_a_gang_and_survive_a_killed_pod_and_a_drained_one(nursery, tmp_path):
    run, whole = tmp_path / "killed", tmp_path / "whole"
    struck, seen = [], []

    def strike(cluster):
        saved = [e["step"] for e in read_events(run / "events.jsonl") if e["event"] == "checkpoint_committed"]
        if saved and not struck:
            struck.append(cluster.pods["workers", 1, 1])
            struck[0].kill()
        if cluster.attempts == 1 and not seen:
            seen.extend(saved)
        # As a drained node does: all save the same step, and it costs none of the restarts.
        if cluster.attempts == 1 and len(struck) == 1 and len(saved) > len(seen):
            struck.append(cluster.pods["workers", 0, 1])
            struck[1].send_signal(signal.SIGTERM)

    (tmp_path / "logs").mkdir()
    tree = manifest(run, retries=1, environment={"NOTE": "$(KANAWA_JOB) costs $5 $$"})
    cluster = Cluster(nursery, tree, tmp_path / "logs")
    assert cluster.run(strike) == "Completed"
    assert (cluster.attempts, cluster.counted, len(struck)) == (2, 1, 2)
    assert cluster.failures[0] in (137, LOST) and cluster.failures[1] == STOPPED
    started = [e["attempt"] for e in read_events(run / "events.jsonl") if e["event"] == "run_started"]
    assert started == [1, 2, 3]
    undisturbed = Cluster(nursery, manifest(whole), tmp_path / "logs")
    assert undisturbed.run() == "Completed" and undisturbed.attempts == 0
    assert losses(run) == losses(whole) and len(losses(run)) == STEPS


def test_what_was_asked_for_reaches_the_process_as_it_was_written(tmp_path):
    note = "$(KANAWA_JOB) costs $5, $$ and $$(NO), ${HOME} `date`"
    tree = manifest(tmp_path / "run", environment={"NOTE": note}, more=["--set", f"model.name={note}"])
    (container,) = tree["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    variables = {"KANAWA_SLICE": "1", "JOB_COMPLETION_INDEX": "1", "KANAWA_JOB": "pods"}
    for variable in container["env"]:
        if "value" in variable:
            variables[variable["name"]] = expanded(variable["value"], variables)
    assert variables["NOTE"] == note
    line = expanded(container["command"][2], variables).replace("exec kanawa ", "printf '%s\\n' ", 1)
    command = ["sh", "-c", line]
    said = subprocess.run(
        command, env=variables | {"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )
    words = said.stdout.splitlines()
    assert f"model.name={note}" in words and words[-2:] == ["--process-id", "3"]


@pytest.mark.nightly
def test_what_is_permanent_fails_the_set_at_once(nursery, tmp_path):
    cluster = Cluster(nursery, manifest(tmp_path / "run", more=["--set", "no.such=1"]), tmp_path)
    assert cluster.run() == "Failed"
    assert (cluster.attempts, cluster.failures) == (0, [2])
