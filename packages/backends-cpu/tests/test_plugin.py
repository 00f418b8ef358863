"""The backend passes the kit that strangers' backends pass."""

from kanawa.testing.backend import BackendConformance


class TestBackend(BackendConformance):
    distribution = "kanawa-backends-cpu"
    unsupported = {
        "topology": "a process makes as many CPU devices as a target has",
    }
