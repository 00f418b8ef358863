"""The backend passes the kit that strangers' backends pass."""

from kanawa.testing.backend import BackendConformance


class TestBackend(BackendConformance):
    distribution = "kanawa-backends-gpu"
