"""The backend passes the kit that strangers' backends pass."""

from kanawa.testing.backend import BackendConformance


class TestBackend(BackendConformance):
    distribution = "kanawa-backends-neuron"
    unsupported = {
        "topology": "AWS publishes no compiler wheel for machines without Trainium",
    }
