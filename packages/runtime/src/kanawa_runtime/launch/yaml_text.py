"""YAML as people write it, for the systems that read it."""

from typing import Any

from kanawa_runtime.launch.client import LauncherError

_WIDE = 100_000


def to_yaml(data: Any) -> str:
    """Returns data as YAML, in its own order and without references; raises LauncherError without PyYAML."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        message = "manifests are written with PyYAML, which is missing: pip install 'kanawa-runtime[kubernetes]'"
        raise LauncherError(message) from error

    class Plain(yaml.SafeDumper):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            """Two pods with equal resources share an object here, which is not written as `&id001`."""
            return True

        def represent_list(self, data: Any) -> Any:
            """A hundred exit codes are one line."""
            flow = bool(data) and all(type(each) is int for each in data)
            return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)

    Plain.add_representer(list, Plain.represent_list)
    text: str = yaml.dump(data, Dumper=Plain, sort_keys=False, width=_WIDE)
    return text
