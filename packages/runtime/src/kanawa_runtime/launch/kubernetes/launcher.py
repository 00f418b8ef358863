"""`jobset` and `pathways`: jobs on Kubernetes by kubectl."""

import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from kanawa.config import Count, Size

from kanawa_runtime.launch.client import LauncherError, call, to_yaml
from kanawa_runtime.launch.job import NAME, Job, device_environment, hosts, target
from kanawa_runtime.launch.kubernetes.accelerators import cloud_of, slice_environment
from kanawa_runtime.launch.kubernetes.deployment import UNROUTED_SECONDS, deployment
from kanawa_runtime.launch.kubernetes.jobset import job_set
from kanawa_runtime.launch.kubernetes.pathways import INSTANCES, PROXIED, pathways_set
from kanawa_runtime.launch.kubernetes.policy import MAIN
from kanawa_runtime.launch.launcher import Launcher, State, Status

_KUBECTL = "install kubectl and log in to the cluster"
#: What Kubernetes takes for names of objects, for keys and values of labels, and for amounts.
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_KEY = r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
_QUANTITY = r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?"
_PLACE = rf"{_SUBDOMAIN}/[-._a-zA-Z0-9]{{1,253}}"
#: Of a pod, whose name ends in the replicated job's, two numbers and five letters.
_MOST_NAME = 63
_STATES: dict[str, State] = {"Completed": "done", "Failed": "failed", "Suspended": "queued"}


class KubernetesLauncher(Launcher, abstract=True):
    """Renders a JobSet and checks it offline, then leaves all else to the cluster's controllers."""

    class Config(Launcher.Config):
        namespace: str = ""
        #: Whose node labels to use; by default TPUs are GKE's and Trainium is EKS's.
        cloud: Literal["", "gke", "eks"] = ""
        #: Mount path to the name of a PersistentVolumeClaim, for runs that aren't in a bucket.
        claims: dict[str, str] = {}
        node_selector: dict[str, str] = {}
        tolerations: list[str] = []
        service_account: str = ""
        #: Variable to SECRET/KEY, an entry of a Secret of the namespace: {"WANDB_API_KEY": "wandb/key"}.
        secrets: dict[str, str] = {}
        #: Node label within one value of which Kueue must place a slice.
        topology: str = ""
        #: How long the cluster remembers a job that ended.
        keep_seconds: Count = 604_800

    secrets_by = 'give --option \'secrets={"NAME": "SECRET/KEY"}\', an entry of a Secret of the cluster'

    #: The file that `render` writes, and the variables that it sets besides those of every job.
    file = "jobset.yaml"
    variables: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def manifests(self, job: Job) -> list[dict[str, Any]]:
        """Returns the objects that make up the job."""

    def render(self, job: Job) -> dict[str, str]:
        """Returns the manifests in one file."""
        return {self.file: "---\n".join(to_yaml(manifest) for manifest in self.manifests(job))}

    def problems(self, job: Job) -> Iterator[str]:
        """Yields what a pod can't do."""
        if not job.image:
            yield "image is empty: a pod runs a container image that has kanawa installed; give one with --image"
        if job.processes_per_host > 1:
            yield f"{job.processes_per_host} processes a host: a pod is one process here; leave --processes out"
        if "://" not in job.run and not any(_inside(job.run, path) for path in self.config.claims):
            yield (
                f"run {job.run!r} would lie in the pod and be lost with it; give a bucket (gs://, s3://), or mount a "
                'volume that several pods may write: --option \'claims={"/runs": "CLAIM"}\' --run /runs/NAME'
            )
        cloud = cloud_of(target(job), self.config.cloud)
        if job.spot and not cloud:
            yield "spot: which nodes are reclaimable depends on the cloud; give --option cloud=gke or cloud=eks"
        for name, place in self.config.secrets.items():
            if not (re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) and re.fullmatch(_PLACE, place)):
                yield f"secret {name}={place!r}: expected SECRET/KEY for a variable, such as WANDB_API_KEY=wandb/key"
            if name in job.environment:
                yield f"{name} is given by --env and by a Secret; leave --env {name} out"
        for name, amount in job.resources.items():
            if not (re.fullmatch(_KEY, name) and re.fullmatch(r"[1-9]\d*" if "/" in name else _QUANTITY, amount)):
                yield f"resource {name}={amount}: Kubernetes takes amounts such as 8, 500m and 64Gi; give --resource so"
        if target(job).device.platform == "cpu" and not job.resources:
            yield "resources are empty: a CPU pod gets next to nothing; give --resource cpu=8 --resource memory=32Gi"
        yield from self._names_refused(job)

    def _names_refused(self, job: Job) -> Iterator[str]:
        """Yields each name that the cluster would refuse, by the option that gave it."""
        cfg = self.config
        yield from _refused("--option namespace", [cfg.namespace], f"{NAME.pattern}|")
        yield from _refused("--option service_account", [cfg.service_account], f"{_SUBDOMAIN}|")
        yield from _refused("--image", [job.image], r"\S*")
        yield from _refused("--queue", [job.queue], _VALUE)
        yield from _refused("--priority", [job.priority], f"{_SUBDOMAIN}|")
        yield from _refused("--option tolerations", cfg.tolerations, _KEY)
        yield from _refused("--option node_selector", cfg.node_selector, _KEY)
        yield from _refused("--option node_selector", cfg.node_selector.values(), _VALUE)
        yield from _refused("--option claims", cfg.claims, r"/[^:\s]*")
        yield from _refused("--option claims", cfg.claims.values(), _SUBDOMAIN)
        ours = self.variables | device_environment(job).keys() | slice_environment(job, "").keys()
        yield from (f"{name} is set for each pod; leave --env {name} out" for name in sorted(ours & {*job.environment}))

    def submit(self, job: Job, folder: Path) -> str:
        """Applies the manifests: the same job again changes nothing."""
        call([*self._kubectl(), "apply", "-f", str(folder / self.file)], _KUBECTL)
        return job.name

    def status(self, name: str) -> Status:
        """Returns what the JobSet's conditions say."""
        try:
            text = call([*self._kubectl(), "get", "jobset", name, "-o", "json"], _KUBECTL)
        except LauncherError as error:
            if "NotFound" in str(error):
                message = f"the cluster has no JobSet {name!r}; `kubectl get jobsets` lists them"
                raise LauncherError(message) from error
            raise
        return status_of(json.loads(text))

    def logs(self, name: str) -> str:
        """Returns the last lines of each pod, with its name."""
        selector = f"jobset.sigs.k8s.io/jobset-name={name}"
        return call([*self._kubectl(), "logs", "-l", selector, "-c", MAIN, "--prefix", "--tail=100"], _KUBECTL)

    def cancel(self, name: str) -> None:
        """Suspends the JobSet, which ends its pods with their grace; it stays to be looked at, and can be resumed."""
        patch = '{"spec": {"suspend": true}}'
        call([*self._kubectl(), "patch", "jobset", name, "--type=merge", "-p", patch], _KUBECTL)

    def _kubectl(self) -> list[str]:
        return ["kubectl", *(["-n", self.config.namespace] if self.config.namespace else [])]


class JobSetLauncher(KubernetesLauncher):
    """A JobSet on Kubernetes: CPUs, TPUs, GPUs and Trainium, with or without Kueue."""

    title = "jobset"

    class Config(KubernetesLauncher.Config):
        #: Priority class of spares, below the workers': who is placed first when hosts are short.
        spare_priority: str = ""

    def manifests(self, job: Job) -> list[dict[str, Any]]:
        """Returns the JobSet."""
        return [job_set(job, self.config, cloud_of(target(job), self.config.cloud))]

    def problems(self, job: Job) -> Iterator[str]:
        """Yields what the JobSet can't do."""
        yield from super().problems(job)
        yield from _too_long(job)
        yield from _refused("--option spare_priority", [self.config.spare_priority], f"{_SUBDOMAIN}|")
        if job.spares and not (self.config.spare_priority and job.priority):
            yield (
                f"{job.spares} spares: workers take their hosts by priority; give --priority HIGH and "
                "--option spare_priority=LOW, two priority classes of the cluster"
            )
        if job.spares and job.queue:
            yield "spares with a queue: Kueue admits and evicts a JobSet as a whole, spares too; leave one out"


class DeploymentLauncher(KubernetesLauncher):
    """Replicas of `kanawa serve` as a Deployment, with a Service that any router of the cluster can stand before."""

    title = "deployment"
    file = "deployment.yaml"
    serves = True

    class Config(KubernetesLauncher.Config):
        #: Secret whose entry `keys` holds the clients' keys, comma-separated; empty where none is asked for.
        api_keys: str = ""
        #: What a replica gets to read its weights and compile.
        ready_seconds: Size = 1800

    def manifests(self, job: Job) -> list[dict[str, Any]]:
        """Returns the Deployment and its Service."""
        return deployment(job, self.config, cloud_of(target(job), self.config.cloud))

    def problems(self, job: Job) -> Iterator[str]:
        """Yields what a Deployment can't do."""
        yield from super().problems(job)
        if hosts(job) > 1:
            yield f"target {job.target} has {hosts(job)} hosts: a replica is one pod; give a target of one with --on"
        if job.queue:
            yield f"queue {job.queue!r}: a server isn't queued; leave --queue out"
        if job.spares:
            yield f"{job.spares} spares: one more replica is one; raise --replicas"
        if job.grace_seconds <= UNROUTED_SECONDS:
            yield f"grace of {job.grace_seconds} s: routers need {UNROUTED_SECONDS} of them; give more with --grace"
        yield from _refused("--option api_keys", [self.config.api_keys], f"{_SUBDOMAIN}|")

    def status(self, name: str) -> Status:
        """Returns how many replicas take requests."""
        text = call([*self._kubectl(), "get", "deployment", name, "-o", "json"], _KUBECTL)
        facts = json.loads(text)
        ready, wanted = facts.get("status", {}).get("readyReplicas", 0), facts["spec"]["replicas"]
        state: State = "cancelled" if not wanted else "running" if ready else "queued"
        return Status(state, detail=f"{ready} of {wanted} replicas are ready")

    def logs(self, name: str) -> str:
        """Returns the last lines of each replica, with its name."""
        return call(
            [*self._kubectl(), "logs", "-l", f"app.kubernetes.io/name={name}", "--prefix", "--tail=100"], _KUBECTL
        )

    def cancel(self, name: str) -> None:
        """Scales to no replica, each of which drains."""
        call([*self._kubectl(), "scale", "deployment", name, "--replicas=0"], _KUBECTL)


class PathwaysLauncher(KubernetesLauncher):
    """A JobSet with Pathways on GKE: one program for all TPUs, whose workers restart alone."""

    title = "pathways"
    variables: ClassVar[frozenset[str]] = frozenset(PROXIED)

    class Config(KubernetesLauncher.Config):
        #: A gs:// folder that the servers may write to.
        scratch: str = ""
        server_image: str = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/server:latest"
        proxy_image: str = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/proxy_server:latest"

    def manifests(self, job: Job) -> list[dict[str, Any]]:
        """Returns the JobSet."""
        return [pathways_set(job, self.config, "gke")]

    def problems(self, job: Job) -> Iterator[str]:
        """Yields what Pathways can't do."""
        yield from super().problems(job)
        device = target(job).device
        if device.name not in INSTANCES:
            yield f"target {job.target}: Pathways runs on {', '.join(INSTANCES)}; use jobset for {device.name}"
        if not self.config.scratch.startswith("gs://"):
            yield f"scratch is {self.config.scratch!r}: the servers need a bucket; give --option scratch=gs://BUCKET/FOLDER"
        if job.spares:
            yield f"{job.spares} spares: the controller waits for a lost worker to come back; leave --spares out"
        if job.queue:
            yield f"queue {job.queue!r}: a queue counts requests, and the head has none; leave --queue out"
        yield from _too_long(job)


def status_of(job_set: dict[str, Any]) -> Status:
    """Returns what a JobSet's status means; `permanent` failures and used-up restarts are both "failed"."""
    status = job_set.get("status", {})
    every = int(status.get("restarts", 0))
    restarts = int(status.get("restartsCountTowardsMax", every))
    stops = every - restarts
    for condition in status.get("conditions", ()):
        if condition.get("status") == "True" and condition.get("type") in _STATES:
            state = _STATES[condition["type"]]
            if (
                state == "queued"
                and job_set["spec"].get("suspend")
                and not job_set["metadata"]["labels"].get("kueue.x-k8s.io/queue-name")
            ):
                state = "cancelled"
            return Status(state, restarts, None, condition.get("message", ""), stops)
    jobs = status.get("replicatedJobsStatus", ())
    detail = ", ".join(f"{each['name']}: {each.get('ready', 0)} ready, {each.get('failed', 0)} failed" for each in jobs)
    running = any(each.get("ready") or each.get("active") for each in jobs)
    return Status("running" if running else "queued", restarts, None, detail, stops)


def _refused(option: str, names: Iterable[str], pattern: str) -> Iterator[str]:
    """Yields the names that don't match."""
    wrong = (name for name in names if not re.fullmatch(pattern, name))
    yield from (f"{option} {name!r}: Kubernetes takes no such name; give another" for name in wrong)


def _too_long(job: Job) -> Iterator[str]:
    """Yields whether the names of the job's pods would be longer than Kubernetes takes."""
    longest = f"{job.name}-workers-{job.slices - 1}-{job.hosts_per_slice - 1}-abcde"
    if len(longest) > _MOST_NAME:
        yield (
            f"name {job.name!r}: pods called {longest} have {len(longest)} characters, at most {_MOST_NAME}; give a "
            "shorter one with --name"
        )


def _inside(run: str, path: str) -> bool:
    return run.rstrip("/").startswith(path.rstrip("/") + "/")
