"""The backend passes the kit that strangers' backends pass."""

from sashimono.testing.backend import BackendConformance


class TestBackend(BackendConformance):
    distribution = "sashimono-backends-neuron"
    unsupported = {
        "components": "hooks alone so far",
        "topology": "AWS publishes no compiler wheel for machines without Trainium",
    }
