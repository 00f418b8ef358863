"""What must hold between the fields of a JobSet: the rules of its webhook and of Kubernetes, and those of a gang."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from kanawa_runtime.exit_codes import STOPPED, permanent_codes
from kanawa_runtime.launch.kubernetes.policy import FAILED, FREE, GAVE_UP, RULE_MESSAGE

from .command import line_problems

#: What a JobSet does about a failed Job that no rule names.
COUNTED = "RestartJobSet"

_MOST_NAME = 63
#: What Kubernetes appends to the name of a pod.
_RANDOM = "-abcde"
Tree = dict[str, Any]


def broken_rules(manifest: Tree) -> Iterator[str]:
    """Yields each rule that a manifest of the right schema breaks: where, what is there, what would do."""
    spec = manifest["spec"]
    jobs = {job["name"]: job for job in spec["replicatedJobs"]}
    yield from _twice((job["name"] for job in spec["replicatedJobs"]), "spec.replicatedJobs: name")
    for job in spec["replicatedJobs"]:
        where = f"spec.replicatedJobs[{job['name']}]"
        yield from _names(manifest["metadata"]["name"], job, where)
        yield from _counts(job["template"]["spec"], where)
        yield from _pod_failure(job["template"]["spec"], where)
        yield from pod_rules(job["template"]["spec"]["template"]["spec"], where)
    yield from _policies(spec, jobs)
    yield from _coordinator(spec, jobs)
    yield from _order(spec, list(jobs))
    yield from _gang(manifest, jobs)
    yield from _queue(manifest, jobs)
    for name in dict.fromkeys(spec["successPolicy"]["targetReplicatedJobs"]):
        pods = jobs[name]["template"]["spec"]["template"]["spec"] if name in jobs else {"containers": []}
        for container in pods["containers"]:
            yield from process_rules(container, manifest["metadata"]["name"], ("KANAWA_JOB", "KANAWA_ATTEMPT"))


def process_rules(container: Tree, name: str, needed: tuple[str, ...]) -> Iterator[str]:
    """Yields what is wrong with the container in which a process of ours runs: its command and environment."""
    variables = {each["name"]: each.get("value", "") for each in container["env"]}
    for variable in needed:
        if variable not in variables:
            yield f"{container['name']}: {variable} isn't set"
    if variables.get("KANAWA_JOB", name) != name:
        yield f"{container['name']}: KANAWA_JOB is {variables['KANAWA_JOB']!r}, the object is called {name!r}"
    line = container["command"][-1] if "command" in container else ""
    yield from (f"{container['name']}: {problem}" for problem in line_problems(line.replace("$$", "$")))


def _names(name: str, job: Tree, where: str) -> Iterator[str]:
    most = job["template"]["spec"]["completions"] - 1
    longest = f"{name}-{job['name']}-{job['replicas'] - 1}-{most}{_RANDOM}"
    if len(longest) > _MOST_NAME:
        yield (
            f"{where}: its pods' names, such as {longest}, have {len(longest)} characters, at most {_MOST_NAME}; "
            f"shorten metadata.name by {len(longest) - _MOST_NAME}"
        )


def _counts(spec: Tree, where: str) -> Iterator[str]:
    if spec["parallelism"] != spec["completions"]:
        yield (
            f"{where}: parallelism {spec['parallelism']} and completions {spec['completions']} differ; a gang runs all "
            "its pods at once, and each is done once"
        )


def _pod_failure(spec: Tree, where: str) -> Iterator[str]:
    containers = {each["name"] for each in spec["template"]["spec"]["containers"]}
    rules = spec.get("podFailurePolicy", {"rules": []})["rules"]
    for rule in rules:
        codes = rule.get("onExitCodes")
        if codes is None:
            continue
        if codes["containerName"] not in containers:
            yield f"{where}.podFailurePolicy: no container {codes['containerName']!r}; there are {sorted(containers)}"
        if codes["values"] not in (list(permanent_codes()), [STOPPED]):
            yield (
                f"{where}.podFailurePolicy: the codes are neither 1 to 126 without {STOPPED}, which no restart would "
                f"mend, nor {STOPPED}, a stop that saved everything"
            )
    if any("onPodConditions" in rule and rule["action"] != "Ignore" for rule in rules) and not any(
        "onExitCodes" in rule for rule in rules
    ):
        yield f"{where}.podFailurePolicy: an eviction fails pods that only hold hosts; expected Ignore"
    if not spec["backoffLimit"] and not any("onExitCodes" in rule for rule in rules):
        yield f"{where}: backoffLimit 0 without a podFailurePolicy on exit codes restarts what can't be mended"


def pod_rules(pod: Tree, where: str) -> Iterator[str]:
    """Yields what of a pod's own fields doesn't fit together."""
    everyone = [*pod.get("initContainers", ()), *pod["containers"]]
    yield from _twice((each["name"] for each in everyone), f"{where}: container")
    volumes = [volume["name"] for volume in pod.get("volumes", ())]
    yield from _twice(volumes, f"{where}: volume")
    mounted = set()
    for container in everyone:
        own = f"{where}.{container['name']}"
        yield from _twice((each["name"] for each in container["env"]), f"{own}: variable")
        yield from _references(container["env"], own)
        mounts = container.get("volumeMounts", ())
        yield from _twice((mount["mountPath"] for mount in mounts), f"{own}: mountPath")
        yield from (f"{own}: no volume {m['name']!r}; there are {volumes}" for m in mounts if m["name"] not in volumes)
        mounted |= {mount["name"] for mount in mounts}
        yield from _resources(container["resources"], pod, own)
    yield from (f"{where}: volume {name!r} is mounted nowhere" for name in volumes if name not in mounted)


def _references(variables: list[Tree], where: str) -> Iterator[str]:
    """Yields the `$(NAME)` that Kubernetes would leave as they are: it knows what stands before a variable only."""
    known: set[str] = set()
    for variable in variables:
        # Twice the sign stands for one of it, which begins nothing.
        asked = re.findall(r"\$\(([^)]*)\)", variable.get("value", "").replace("$$", ""))
        unknown = sorted(set(asked) - known)
        if unknown:
            yield f"{where}: {variable['name']} is made of {', '.join(unknown)}, not set before it; write $$( for $("
        known.add(variable["name"])


def _resources(resources: Tree, pod: Tree, where: str) -> Iterator[str]:
    limits = resources.get("limits", {})
    if resources.get("requests", {}) != limits:
        yield f"{where}: requests and limits differ; devices can't be overcommitted, and a gang must not be throttled"
    for name, amount in limits.items():
        if "/" in name and not (amount.isdigit() and int(amount) > 0):
            yield f"{where}: {name} is {amount!r}; devices are counted, from 1"
    selected = "cloud.google.com/gke-tpu-topology" in pod.get("nodeSelector", {})
    labelled = "cloud.google.com/gke-tpu-accelerator" in pod.get("nodeSelector", {})
    if len({selected, labelled, "google.com/tpu" in limits}) > 1:
        yield f"{where}: a TPU host needs the limit google.com/tpu and both node labels, its accelerator and topology"
    tainted = {each["key"] for each in pod.get("tolerations", ())}
    for name in ("google.com/tpu", "nvidia.com/gpu", "aws.amazon.com/neuron"):
        if name in limits and name not in tainted:
            yield f"{where}: nothing tolerates the taint {name} of the nodes that have it"


def _policies(spec: Tree, jobs: dict[str, Tree]) -> Iterator[str]:
    rules = spec["failurePolicy"]["rules"]
    yield from _twice((rule["name"] for rule in rules), "spec.failurePolicy: rule")
    named = [("failurePolicy", name) for rule in rules for name in rule["targetReplicatedJobs"]]
    named += [("successPolicy", name) for name in spec["successPolicy"]["targetReplicatedJobs"]]
    yield from (
        f"spec.{where}: no replicated job {n!r}; there are {sorted(jobs)}" for where, n in named if n not in jobs
    )
    for name in dict.fromkeys(spec["successPolicy"]["targetReplicatedJobs"]):
        if name in jobs:
            yield from _outcomes(rules, name, jobs[name]["template"]["spec"].get("podFailurePolicy", {"rules": []}))


def _outcomes(rules: list[Tree], name: str, policy: Tree) -> Iterator[str]:
    """Yields each end of a pod on which the set would do something else than the table says."""
    wanted = [("a lost process", "BackoffLimitExceeded", "", COUNTED)]
    kinds = {"permanent": False, "stopped": False, "disrupted": False}
    for index, rule in enumerate(policy["rules"]):
        values = rule.get("onExitCodes", {}).get("values")
        kind = "disrupted" if values is None else "stopped" if values == [STOPPED] else "permanent"
        kinds[kind] |= rule["action"] == "FailJob"
        wanted.append((f"a {kind} pod", GAVE_UP, RULE_MESSAGE.format(index), FAILED if kind == "permanent" else FREE))
    missing = [kind for kind, is_there in kinds.items() if not is_there]
    if missing:
        yield f"{name}: podFailurePolicy has no rule FailJob for pods that are {', '.join(missing)}"
    for what, reason, message, action in wanted:
        given = outcome(rules, name, reason, message)
        if given != action:
            yield f"spec.failurePolicy: {what} of {name!r} gives {given}, expected {action}"


def outcome(rules: list[Tree], name: str, reason: str, message: str) -> str:
    """Returns what a JobSet does about a failed Job: the action of the first rule that it fits."""
    for rule in rules:
        patterns = rule.get("onJobFailureMessagePatterns", ())
        says = not patterns or any(re.search(pattern, message) for pattern in patterns)
        if says and reason in rule["onJobFailureReasons"] and name in rule["targetReplicatedJobs"]:
            return str(rule["action"])
    return COUNTED


def _coordinator(spec: Tree, jobs: dict[str, Tree]) -> Iterator[str]:
    coordinator = spec["coordinator"]
    job = jobs.get(coordinator["replicatedJob"])
    if job is None:
        yield f"spec.coordinator: no replicated job {coordinator['replicatedJob']!r}; there are {sorted(jobs)}"
    elif coordinator["jobIndex"] or coordinator["podIndex"]:
        yield "spec.coordinator: process 0, which serves the others, is pod 0 of job 0"


def _order(spec: Tree, names: list[str]) -> Iterator[str]:
    depending = [job for job in spec["replicatedJobs"] if "dependsOn" in job]
    if depending and spec.get("startupPolicy", {}).get("startupPolicyOrder") == "InOrder":
        yield "spec: startupPolicy InOrder and dependsOn exclude each other"
    for job in depending:
        before = names[: names.index(job["name"])]
        wrong = [each["name"] for each in job["dependsOn"] if each["name"] not in before]
        yield from (f"spec.replicatedJobs[{job['name']}]: dependsOn {w!r}, which doesn't come before it" for w in wrong)


def _gang(manifest: Tree, jobs: dict[str, Tree]) -> Iterator[str]:
    """Yields where the arguments by which processes join don't fit the pods there are."""
    name, network = manifest["metadata"]["name"], manifest["spec"]["network"]["subdomain"]
    for job in jobs.values():
        pods = job["template"]["spec"]
        for container in pods["template"]["spec"]["containers"]:
            line = " ".join(container.get("command", ()))
            count = re.search(r"--processes (\d+)", line)
            expected = job["replicas"] * pods["completions"]
            if count and int(count[1]) != expected:
                yield f"{job['name']}: --processes {count[1]}, but there are {expected} pods"
            address = re.search(r"--coordinator ([^\s:]+):(\d+)", line)
            served = f"{name}-{job['name']}-0-0.{network}"
            if address and address[1] != served:
                yield f"{job['name']}: --coordinator {address[1]}, but the first pod is {served}"
            if address and int(address[2]) not in [port["containerPort"] for port in container.get("ports", ())]:
                yield f"{job['name']}: --coordinator's port {address[2]} isn't among the container's ports"
            known = {each["name"] for each in container["env"]} | {"JOB_COMPLETION_INDEX"}
            index = re.search(r"--process-id \$\$\(\((.*?)\)\)", line)
            unknown = set(re.findall(r"[A-Z_]{2,}", index[1] if index else "")) - known
            yield from (
                f"{job['name']}: --process-id reads {variable}, which isn't set" for variable in sorted(unknown)
            )
            factor = re.search(r"\* (\d+) \+", index[1]) if index else None
            if factor and int(factor[1]) != pods["completions"]:
                yield f"{job['name']}: --process-id counts {factor[1]} pods a job, there are {pods['completions']}"
            if bool(count) != (expected > 1 and bool(index)):
                yield f"{job['name']}: {expected} pods, but its command joins {count[1] if count else 'no'} processes"


def _queue(manifest: Tree, jobs: dict[str, Tree]) -> Iterator[str]:
    if "kueue.x-k8s.io/queue-name" not in manifest["metadata"]["labels"]:
        return
    for job in jobs.values():
        containers = job["template"]["spec"]["template"]["spec"]["containers"]
        if not any(container["resources"] for container in containers):
            yield f"{job['name']}: a queue counts requests, and its pods have none; give --resource cpu=… memory=…"


def _twice(names: Any, what: str) -> Iterator[str]:
    yield from (f"{what} {name!r} is there {count} times" for name, count in Counter(names).items() if count > 1)
