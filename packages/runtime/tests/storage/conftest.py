"""Storages on this machine, and one S3 server for all tests of this folder."""

import os

import pytest
from s3_server import BUCKET, s3_server


@pytest.fixture(scope="module")
def served():
    """Returns a real S3 server."""
    with s3_server() as server:
        yield server


@pytest.fixture
def server(served):
    """Returns the server, mended after the test."""
    yield served
    served.mend()


@pytest.fixture
def address(server, request):
    """Returns an address of the test's own in the bucket."""
    return f"s3://{BUCKET}/{os.getpid()}/{request.node.name.replace('[', '-').replace(']', '')}"
