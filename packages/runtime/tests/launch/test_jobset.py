"""One job on every kind of node, as JobSets: golden manifests, the schema and rules, and what is refused."""

import random
import re

import pytest
import yaml
from kanawa.errors import KanawaError
from kanawa_runtime.launch.kubernetes.launcher import DeploymentLauncher, JobSetLauncher, PathwaysLauncher, status_of

from . import checks
from .jobs import check_golden, job, mutated, refusal, served

VARIANTS = {
    "cpu": (
        JobSetLauncher.Config(claims={"/runs": "shared"}, service_account="trainer"),
        job("cpu-4", slices=2, hosts_per_slice=2, resources={"cpu": "8", "memory": "32Gi"}, run="/runs/seven"),
    ),
    "kueue": (
        JobSetLauncher.Config(namespace="ml", topology="cloud.provider.com/rack"),
        job("h100-16", hosts_per_slice=2, queue="team", priority="high", environment={"NCCL_DEBUG": "WARN"}),
    ),
    "gke-tpu": (JobSetLauncher.Config(), job("v5p-16x2", slices=2, hosts_per_slice=4, spot=True, grace_seconds=300)),
    "gpu-spares": (
        JobSetLauncher.Config(spare_priority="low", node_selector={"pool": "h100"}),
        job("h100-16", hosts_per_slice=2, priority="high", spares=1),
    ),
    "eks-trainium": (JobSetLauncher.Config(), job("trn2-64", hosts_per_slice=4, retries=3)),
    "pathways": (
        PathwaysLauncher.Config(scratch="gs://bucket/scratch"),
        job("v5p-16x2", slices=2, hosts_per_slice=4),
    ),
}


def manifest(variant):
    config, wanted = VARIANTS[variant]
    (tree,) = config.build().manifests(wanted)
    return tree


@pytest.mark.parametrize("variant", VARIANTS)
def test_manifests_are_golden_and_pass_the_checks(variant):
    config, wanted = VARIANTS[variant]
    adapter = config.build()
    adapter.check(wanted)
    text = adapter.render(wanted)["jobset.yaml"]
    check_golden(f"jobset-{variant}.yaml", text)
    assert checks.file_problems(adapter, {"jobset.yaml": text}) == []
    assert yaml.safe_load(text) == manifest(variant)
    assert adapter.render(wanted) == {"jobset.yaml": text}, "the same job gives the same files"


# --- what a typing error or a careless edit makes of a manifest ------------------------------------------------------


def test_mutated_manifests_are_refused():
    rng = random.Random(7)
    taken = []
    for index in range(200):
        wrong, mistake = mutated(manifest(list(VARIANTS)[index % len(VARIANTS)]), rng)
        if not checks.problems_of(wrong):
            taken.append(f"{list(VARIANTS)[index % len(VARIANTS)]}: {mistake}")
    # What is left are numbers and words that only their author can know: a time, a variable's value.
    assert len(taken) <= 10, taken


def edit(variant, **changes):
    """Returns a variant's manifest with values at dotted paths replaced."""
    tree = manifest(variant)
    for path, value in changes.items():
        *holders, last = path.split("__")
        node = tree
        for key in holders:
            node = node[int(key) if key.isdigit() else key]
        node[int(last) if last.isdigit() else last] = value
    return tree


WORKERS = "spec__replicatedJobs__0__"
POD = WORKERS + "template__spec__template__spec__"


@pytest.mark.parametrize(
    ("variant", "changes", "said"),
    [
        ("cpu", {"metadata__name": "a" * 55}, "names, such as a{55}-workers-1-1-abcde, have 73 characters"),
        ("cpu", {WORKERS + "template__spec__completions": 3}, "parallelism 2 and completions 3 differ"),
        ("cpu", {WORKERS + "replicas": 3}, "--processes 4, but there are 6 pods"),
        ("cpu", {WORKERS + "template__spec__completionMode": "NonIndexed"}, "'NonIndexed' is not one of"),
        ("cpu", {"spec__coordinator__replicatedJob": "worker"}, "no replicated job 'worker'; there are"),
        ("cpu", {"spec__network__subdomain": "other"}, "the first pod is seven-workers-0-0.other"),
        (
            "cpu",
            {"spec__failurePolicy__rules__0__action": "RestartJobSet"},
            "a stopped pod of 'workers' gives RestartJobSet",
        ),
        (
            "cpu",
            {"spec__failurePolicy__rules__1__action": "RestartJobSet"},
            "a permanent pod of .* expected FailJobSet",
        ),
        (
            "cpu",
            {"spec__failurePolicy__rules__0__onJobFailureMessagePatterns": ["FailJob"]},
            "a permanent pod of 'workers' gives RestartJobSetAndIgnoreMaxRestarts, expected FailJobSet",
        ),
        (
            "cpu",
            {POD + "containers__0__env__3__value": "$(NAME)"},
            r"is made of NAME, not set before it; write \$\$\(",
        ),
        ("cpu", {POD + "containers__0__env__0__value": "eight"}, "KANAWA_JOB is 'eight', the object is called 'seven'"),
        ("cpu", {POD + "containers__0__command__2": "kanawa train a"}, "must take the shell's place"),
        ("cpu", {POD + "containers__0__env__1__name": "SLICE"}, "--process-id reads KANAWA_SLICE, which isn't set"),
        ("cpu", {POD + "containers__0__volumeMounts__0__name": "none"}, "no volume 'none'; there are"),
        ("kueue", {POD + "containers__0__resources": {}}, "a queue counts requests, and its pods have none"),
        ("gke-tpu", {POD + "tolerations": []}, r"tolerations: \[\] "),
        ("gke-tpu", {POD + "nodeSelector": {"a": "b"}}, "needs the limit google.com/tpu and both node labels"),
        (
            "pathways",
            {WORKERS + "template__spec__podFailurePolicy__rules__0__onExitCodes__values": [1, 2]},
            "without 42",
        ),
    ],
)
def test_rules_between_fields(variant, changes, said):
    wrong = checks.problems_of(edit(variant, **changes))
    assert any(re.search(said, each) for each in wrong), wrong


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"spec__replicatedJobs__1__replicas": 3}, "--instance_count=2, there are 3 slices"),
        ({POD + "initContainers__0__args__1": "--gcs_scratch_location=gs://a"}, "expected one bucket for all servers"),
        ({POD + "initContainers__1__ports__0__containerPort": 1}, r"pathways-proxy: serves at 29000 and opens \[1\]"),
        ({POD + "containers__0__env__2__value": "tpu"}, "main: JAX_PLATFORMS is 'tpu', expected 'proxy'"),
    ],
)
def test_the_servers_of_pathways_find_each_other(changes, said):
    wrong = list(checks.pathways_problems(edit("pathways", **changes)))
    assert any(re.search(said, each) for each in wrong), wrong


def test_order_is_told_one_way():
    tree = manifest("pathways")
    tree["spec"]["replicatedJobs"][1]["dependsOn"] = [{"name": "head", "status": "Ready"}]
    assert checks.problems_of(tree) == []
    tree["spec"]["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    assert checks.problems_of(tree) == ["spec: startupPolicy InOrder and dependsOn exclude each other"]
    del tree["spec"]["startupPolicy"]
    tree["spec"]["replicatedJobs"].reverse()
    assert "dependsOn 'head', which doesn't come before it" in checks.problems_of(tree)[0]


# --- what Kubernetes can't give ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "fields", "said"),
    [
        (JobSetLauncher.Config(), {"image": ""}, "image is empty: a pod runs a container image"),
        (
            JobSetLauncher.Config(),
            {"run": "runs/a"},
            "run 'runs/a' would lie in the pod and be lost with it; give a bucket",
        ),
        (
            JobSetLauncher.Config(),
            {"spares": 1},
            "1 spares: workers take their hosts by priority; give --priority HIGH",
        ),
        (
            JobSetLauncher.Config(),
            {"target": "h100-16", "slices": 1, "hosts_per_slice": 3},
            "leave --hosts out, or name",
        ),
        (JobSetLauncher.Config(), {"target": "h100-16", "hosts_per_slice": 2, "spot": True}, "give --option cloud=gke"),
        (JobSetLauncher.Config(), {"name": "Seven_B"}, "name 'Seven_B' is no DNS label"),
        (PathwaysLauncher.Config(), {}, "give --option scratch=gs://BUCKET/FOLDER"),
        (PathwaysLauncher.Config(), {"target": "trn2-64", "hosts_per_slice": 4}, "Pathways runs on v5e, v5p, v6e"),
    ],
)
def test_what_a_cluster_can_t_give_is_told_before_anything_is_submitted(config, fields, said):
    wanted = job(**{"target": "v5p-16", "slices": 1, "hosts_per_slice": 4, **fields})
    assert said in refusal(config, wanted)


def test_a_missing_client_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        KanawaError, match=r"kubectl isn't on PATH: install kubectl and log in to the cluster; --dry-run"
    ):
        JobSetLauncher.Config().build().submit(job("h100-8"), tmp_path)


@pytest.mark.parametrize(
    ("status", "labels", "state"),
    [
        ({}, {}, "queued"),
        ({"replicatedJobsStatus": [{"name": "workers", "ready": 1}]}, {}, "running"),
        ({"restarts": 2, "conditions": [{"type": "Completed", "status": "True"}]}, {}, "done"),
        ({"conditions": [{"type": "Failed", "status": "True", "message": "m"}]}, {}, "failed"),
        ({"conditions": [{"type": "Suspended", "status": "True"}]}, {"kueue.x-k8s.io/queue-name": "q"}, "queued"),
        ({"conditions": [{"type": "Suspended", "status": "True"}]}, {}, "cancelled"),
    ],
)
def test_what_a_status_means(status, labels, state):
    told = status_of({"metadata": {"labels": labels}, "spec": {"suspend": True}, "status": status})
    assert (told.state, told.restarts) == (state, status.get("restarts", 0))


# --- replicas of a server ---------------------------------------------------------------------------------------------


def test_replicas_are_a_deployment_with_a_service():
    adapter = DeploymentLauncher.Config(api_keys="clients", namespace="ml").build()
    adapter.check(served())
    text = adapter.render(served())["deployment.yaml"]
    check_golden("deployment.yaml", text)
    assert checks.file_problems(adapter, {"deployment.yaml": text}) == []
    deployment, service = yaml.safe_load_all(text)
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"target": "h100-16", "hosts_per_slice": 2}, "a replica is one pod; give a target of one with --on"),
        ({"queue": "team"}, "a server isn't queued; leave --queue out"),
        ({"grace_seconds": 3}, "routers need 5 of them; give more with --grace"),
    ],
)
def test_what_a_deployment_can_t_give(fields, said):
    assert said in refusal(DeploymentLauncher.Config(), served(**fields))
