"""The backend passes the kit that strangers' backends pass."""

from sashimono.testing.backend import BackendConformance


class TestBackend(BackendConformance):
    distribution = "sashimono-backends-tpu"
