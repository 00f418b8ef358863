"""The backend passes the kit that strangers' backends pass."""

from kanawa.testing.backend import BackendConformance


class TestBackend(BackendConformance):
    distribution = "kanawa-backends-cpu"
    unsupported = {
        "components": "kernels arrive with the next step",
        "topology": "a process makes as many CPU devices as a target has",
    }
