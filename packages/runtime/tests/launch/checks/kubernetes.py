"""Whether a manifest would be taken, without a cluster: schema first, then the rules between its fields."""

from typing import Any

from .deployment_schema import DEPLOYMENT, SERVICE
from .jobset_rules import broken_rules, pod_rules, process_rules
from .jobset_schema import JOB_SET
from .schema import schema_problems


def problems_of(manifest: Any) -> list[str]:
    """Returns what is wrong with a JobSet, one sentence each."""
    # The rules read fields, which only the schema makes sure are there.
    return schema_problems(manifest, JOB_SET) or list(broken_rules(manifest))


def serving_problems(deployment: Any, service: Any) -> list[str]:
    """Returns what is wrong with a Deployment and the Service before it."""
    wrong = [*schema_problems(deployment, DEPLOYMENT), *schema_problems(service, SERVICE)]
    if wrong:
        return wrong
    template, selected = deployment["spec"]["template"], deployment["spec"]["selector"]["matchLabels"]
    wrong = list(pod_rules(template["spec"], "spec.template"))
    for container in template["spec"]["containers"]:
        wrong += process_rules(container, deployment["metadata"]["name"], ("KANAWA_JOB",))
    for what, selector in (("Deployment", selected), ("Service", service["spec"]["selector"])):
        if not selector.items() <= template["metadata"]["labels"].items():
            wrong.append(f"the {what} selects {selector}, its pods have {template['metadata']['labels']}")
    return wrong
