"""Every adapter, from one job: what it renders is golden and checked, 200 careless edits of it are refused."""

import json
import random
import re

import pytest
import yaml
from kanawa_runtime.launch.client import JobError
from kanawa_runtime.launch.kubernetes.launcher import DeploymentLauncher, JobSetLauncher, PathwaysLauncher
from kanawa_runtime.launch.local.launcher import LocalLauncher
from kanawa_runtime.launch.ray.launcher import RayLauncher
from kanawa_runtime.launch.ray.serve_launcher import RayServeLauncher
from kanawa_runtime.launch.skypilot.launcher import SkyPilotLauncher
from kanawa_runtime.launch.slurm.launcher import SlurmLauncher

from .checks import file_problems
from .jobs import check_golden, job, mutated, refusal, served

#: A note that shells and Kubernetes would read as something else.
NOTE = "costs $5 in $(HOME), $$ and 'quotes'"
COMMON = {"environment": {"NOTE": NOTE}, "grace_seconds": 300, "retries": 7, "run": "/runs/seven", "image": ""}
GANG = {**COMMON, "target": "h100-16", "hosts_per_slice": 2}
IMAGE = {"image": "registry/image:1"}
#: An adapter, and what of the one job differs for it: an image where there are containers, hardware that it has.
ADAPTERS = {
    "local": (LocalLauncher.Config(), job(**{**COMMON, "target": "h100-8", "processes_per_host": 2})),
    "slurm": (SlurmLauncher.Config(time="1-00:00:00"), job(**GANG)),
    "ray": (RayLauncher.Config(), job(**GANG, resources={"memory": "64Gi"})),
    "jobset": (JobSetLauncher.Config(claims={"/runs": "shared"}, secrets={"A_TOKEN": "a/b"}), job(**{**GANG, **IMAGE})),
    "pathways": (
        PathwaysLauncher.Config(scratch="gs://bucket/scratch", claims={"/runs": "shared"}, secrets={"A_TOKEN": "a/b"}),
        job(**{**COMMON, **IMAGE, "target": "v5p-16", "hosts_per_slice": 4}),
    ),
    "skypilot": (
        SkyPilotLauncher.Config(mounts={"/runs": "s3://bucket"}, secrets=["A_TOKEN"]),
        job(**{**GANG, **IMAGE}),
    ),
    "deployment": (
        DeploymentLauncher.Config(claims={"/runs": "shared"}, secrets={"A_TOKEN": "a/b"}),
        served(**{**COMMON, **IMAGE}),
    ),
    "ray-serve": (RayServeLauncher.Config(), served(**COMMON)),
}
MANY = 200


def rendered(launcher):
    config, wanted = ADAPTERS[launcher]
    adapter = config.build()
    adapter.check(wanted)
    files = adapter.render(wanted)
    assert adapter.render(wanted) == files, "the same job gives the same files"
    return adapter, files


@pytest.mark.parametrize("launcher", ADAPTERS)
def test_one_job_on_every_engine(launcher):
    adapter, files = rendered(launcher)
    assert file_problems(adapter, files) == []
    ((name, text),) = files.items()
    check_golden(f"one-{launcher}.{name.rpartition('.')[2]}", text)
    assert "A_TOKEN" not in text or "secretKeyRef" in text or "A_TOKEN: null" in text


# --- a file as a tree, and back --------------------------------------------------------------------------------------


def opened(name, text):
    """Returns the tree that mistakes are made in: of a script its options and its lines."""
    if name.endswith("json"):
        return json.loads(text)
    if name.endswith("yaml"):
        trees = list(yaml.safe_load_all(text))
        return trees if len(trees) > 1 else trees[0]
    head, _, rest = text.partition("\n\n")
    lines = [line.removeprefix("#SBATCH --").partition("=") for line in head.split("\n")[1:]]
    return {"options": {name: int(v) if v.isdigit() else v for name, _, v in lines}, "lines": rest.split("\n")}


def closed(name, tree):
    """Returns the text of a tree."""
    if name.endswith("json"):
        return json.dumps(tree, indent=1)
    if name.endswith("yaml"):
        # In C, ten times as quick: a manifest lists a hundred codes.
        return yaml.dump_all(
            tree if isinstance(tree, list) else [tree], Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        )
    options, lines = tree.get("options", {}), tree.get("lines", [])
    told = (
        [f"#SBATCH --{n}" + (f"={v}" if v != "" else "") for n, v in options.items()]
        if isinstance(options, dict)
        else []
    )
    body = "\n".join(map(str, lines)) if isinstance(lines, list) else str(lines)
    return "\n".join(["#!/bin/bash", *told]) + "\n\n" + body


@pytest.mark.parametrize("launcher", ADAPTERS)
def test_careless_edits_are_refused(launcher, record_drill):
    adapter, files = rendered(launcher)
    ((name, text),) = files.items()
    tree = opened(name, text)
    assert file_problems(adapter, {name: closed(name, tree)}) == []
    rng, taken = random.Random(7), []
    for _ in range(MANY):
        edited, mistake = tree, ""
        while edited == tree:
            edited, mistake = mutated(tree, rng)
        if not file_problems(adapter, {name: closed(name, edited)}):
            taken.append(mistake)
    record_drill(f"drill: {MANY - len(taken)} of {MANY} edited files for {launcher} refused")
    # What is left are numbers and words that only their author can know: a time, a variable's value.
    assert len(taken) <= MANY // 20, taken


#: What people give, right and wrong, by field of the job and of a launcher's config.
JOB_VALUES = {
    "name": ["eight", "a" * 48, "a" * 63],
    "image": ["registry/image:2", "two words"],
    "environment": [{"A": "b  #c"}, {"KANAWA_JOB": "x"}, {"XLA_FLAGS": "--a"}, {"JAX_PLATFORMS": "cpu"}],
    "resources": [{"cpu": "8", "memory": "64Gi"}, {"cpu": "8", "memory": "64G"}, {"cpu": "x"}, {"nvidia.com/gpu": "x"}],
    "queue": ["team", "my team"],
    "priority": ["high", "High!", "100"],
    "grace_seconds": [30, 3],
    "replicas": [1, 5],
    "spares": [1],
    "spot": [True],
}
CONFIG_VALUES = {
    "namespace": ["ml", "M L"],
    "node_selector": [{"pool": "h100"}, {"a b": "c"}, {"pool": "not ok!"}],
    "tolerations": [["nvidia.com/gpu"], ["a b"], ["pool", "pool"]],
    "claims": [{"/runs": "shared"}, {"/runs": "Shared Disk"}, {"/runs": "shared", "data": "other"}],
    "service_account": ["trainer", "A B"],
    "spare_priority": ["low", "L O W"],
    "api_keys": ["clients", "Cli ents"],
    "time": ["60", "a day"],
    "account": ["ml", "m l"],
    "infra": ["aws", "a b"],
    "mounts": [{"/runs": "s3://bucket"}, {"/runs": "s3://buc ket"}, {"/runs": "s3://bucket", "data": "s3://b"}],
    "setup": [["module load 'a b'"]],
}


@pytest.mark.parametrize("launcher", ADAPTERS)
def test_whatever_is_not_refused_renders_to_what_the_system_takes(launcher):
    given, wanted = ADAPTERS[launcher]
    rng, taken = random.Random(11), 0
    for _ in range(MANY):
        fields = {name: rng.choice(JOB_VALUES[name]) for name in rng.sample(sorted(JOB_VALUES), rng.choice((1, 2)))}
        own = sorted(CONFIG_VALUES.keys() & set(given.fields()))
        options = {name: rng.choice(CONFIG_VALUES[name]) for name in rng.sample(own, min(len(own), rng.choice((0, 1))))}
        adapter, asked = given.clone().set(**options).build(), wanted.clone().set(**fields)
        try:
            adapter.check(asked)
        except JobError:
            continue
        assert file_problems(adapter, adapter.render(asked)) == [], (fields, options)
        taken += 1
    assert MANY // 20 < taken < MANY


#: What one or another launcher can't give.
WISHES = {
    "run": "runs/seven",
    "image": "",
    "queue": "team",
    "priority": "urgent",
    "spot": True,
    "spares": 2,
    "processes_per_host": 3,
    "resources": {"memory": "64 gigabytes", "fast-disk": "1"},
    "environment": {"A_TOKEN": "hush", "not a name": "x"},
    "name": "Seven_B",
}


@pytest.mark.parametrize("launcher", ADAPTERS)
def test_all_that_an_engine_can_t_give_is_told_at_once_with_what_to_do(launcher):
    config, wanted = ADAPTERS[launcher]
    wishes = {**WISHES, "image": "registry/image:1"} if launcher == "local" else WISHES
    said = refusal(config, wanted.clone().set(**wishes))
    check_golden(f"refused-{launcher}.txt", said + "\n")
    first, *problems = said.splitlines()
    assert first == f"{config.build().title} can't run this job:" and len(problems) >= 6
    for problem in problems:
        assert re.search(r"; |: .*(give|leave|use|expected|takes|look|one)\b", problem), problem


# --- what no launcher may write down --------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ADAPTERS)
@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "DB_PASSWORD", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY"])
def test_secrets_are_never_in_the_files(launcher, name):
    config, wanted = ADAPTERS[launcher]
    said = refusal(config, wanted.clone().set(environment={name: "hush"}))
    assert f"environment variable {name} would stand in clear in the job's files; {config.build().secrets_by}" in said


def test_names_that_only_sound_so_are_no_secrets():
    names = ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "GOOGLE_APPLICATION_CREDENTIALS", "AWS_ACCESS_KEY_ID", "KEY_FILE"]
    LocalLauncher.Config().build().check(job(image="", environment=dict.fromkeys(names, "x")))


@pytest.mark.parametrize("launcher", ["jobset", "pathways", "deployment"])
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("wandb", "expected SECRET/KEY for a variable, such as WANDB_API_KEY=wandb/key"),
        ("Big/key", "expected SECRET/KEY"),
    ],
)
def test_a_secret_is_named_with_its_entry(launcher, place, said):
    config, wanted = ADAPTERS[launcher]
    assert said in refusal(config.clone().set(secrets={"A_TOKEN": place}), wanted)
    twice = refusal(config.clone().set(secrets={"NOTE": "a/b"}), wanted)
    assert "NOTE is given by --env and by a Secret; leave --env NOTE out" in twice


def test_a_secret_of_skypilot_is_a_variable():
    config, wanted = ADAPTERS["skypilot"]
    assert "secret 'a b': expected a variable of this shell" in refusal(config.clone().set(secrets=["a b"]), wanted)
