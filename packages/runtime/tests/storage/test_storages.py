"""Folders, memory and buckets: one contract, and each storage's own failures in one vocabulary."""

import shutil
import threading
import uuid
from pathlib import Path

import pytest
from kanawa.contracts import (
    ObjectMissingError,
    StorageConflictError,
    StorageError,
    StorageRefusedError,
    open_storage,
)
from kanawa.errors import UsageError

KINDS = ("file", "ram", "s3", "gs")


@pytest.fixture(scope="module")
def google():
    """Returns an emulator of Google's service; it is no server of Google's, and checks no rights."""
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True)
    server.start()
    try:
        patch = pytest.MonkeyPatch()
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server._api._httpd.server_port}")
        from google.cloud import storage

        storage.Client().create_bucket("bucket")
        yield server
        patch.undo()
    finally:
        server.stop()


@pytest.fixture(params=KINDS)
def storage(request, tmp_path):
    if request.param == "s3":
        opened = open_storage(request.getfixturevalue("address"))
    elif request.param == "gs":
        request.getfixturevalue("google")
        opened = open_storage(f"gs://bucket/{tmp_path.name}")
    elif request.param == "ram":
        if not Path("/dev/shm").is_dir():
            pytest.skip("this machine has no /dev/shm")
        # Memory is the machine's: another session's tests have folders of the same names.
        opened = open_storage(f"ram:///tests/{uuid.uuid4().hex}")
    else:
        opened = open_storage(f"file://{tmp_path}")
    yield opened
    opened.delete(list(opened.sizes()))
    if request.param == "ram":
        shutil.rmtree(opened.root, ignore_errors=True)
    opened.close()


def test_what_is_written_is_read_listed_copied_and_deleted(storage):
    storage.write("a/one", b"0123456789")
    storage.write("a/two", memoryview(b"22"))
    storage.write("a/one", b"9876543210")
    assert (storage.read("a/one"), storage.read("a/one", 2, 3), storage.read("a/one", 8, 9)) == (
        b"9876543210",
        b"765",
        b"10",
    )
    # What was cut short is no failure of the storage's: there is nothing.
    assert (storage.read("a/one", 10, 5), storage.read("a/one", 99, 5), storage.read("a/one", 99)) == (b"", b"", b"")
    assert storage.sizes() == {"a/one": 10, "a/two": 2}
    assert storage.sizes("a/t") == {"a/two": 2}
    storage.copy("a/one", "b/three")
    storage.delete(["a/one", "a/two", "a/none"])
    assert storage.sizes() == {"b/three": 10}
    with pytest.raises(ObjectMissingError, match="a/one"):
        storage.read("a/one")
    with pytest.raises(ObjectMissingError):
        storage.read_version("a/one")


def test_of_those_who_know_a_version_one_writes(storage):
    if storage.address.startswith("gs"):
        pytest.skip("the emulator ignores conditions; see the test of what is asked for")
    first = storage.replace("lease", b"first", None)
    with pytest.raises(StorageConflictError, match="lease was written by another process"):
        storage.replace("lease", b"other", None)
    second = storage.replace("lease", b"second", first)
    with pytest.raises(StorageConflictError):
        storage.replace("lease", b"third", first)
    assert storage.read_version("lease") == (b"second", second)


def test_races_have_one_winner(storage):
    if storage.address.startswith("gs"):
        pytest.skip("the emulator ignores conditions; see the test of what is asked for")

    def write(name):
        try:
            storage.replace("raced", name.encode(), version)
            won.append(name)
        except StorageConflictError:
            lost.append(name)

    version = None
    for round_number in range(3):
        won, lost = [], []
        threads = [threading.Thread(target=write, args=(f"{round_number}.{number}",)) for number in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert (len(won), len(lost)) == (1, 3)
        data, version = storage.read_version("raced")
        assert data.decode() == won[0]


def test_addresses_that_nobody_speaks_are_told_with_near_names():
    with pytest.raises(UsageError, match=r"s4://b/x: no installed package speaks s4://.*choices: file, gs, ram, s3"):
        open_storage("s4://b/x")
    with pytest.raises(UsageError, match=r"'run' is no address; expected one such as file://"):
        open_storage("run")
    with pytest.raises(StorageRefusedError, match=r"names no bucket; expected s3://BUCKET/FOLDER"):
        open_storage("s3:///")


def test_google_is_asked_for_conditions(google, monkeypatch):
    """No server here checks them: that the service does is Google's word."""
    import requests

    asked = []
    send = requests.Session.request

    def told(session, method, url, **rest):
        asked.append(url)
        return send(session, method, url, **rest)

    monkeypatch.setattr(requests.Session, "request", told)
    storage = open_storage("gs://bucket/conditions")
    version = storage.replace("lease", b"one", None)
    assert any("ifGenerationMatch=0" in url for url in asked)
    storage.replace("lease", b"two", version)
    assert any(f"ifGenerationMatch={version}" in url for url in asked)
    storage.close()


def test_what_passes_is_no_refusal():
    from botocore.exceptions import FlexibleChecksumError, IncompleteReadError
    from google.api_core.exceptions import RetryError

    for address, error in (
        ("gs://bucket/a", RetryError("timeout of 60 s exceeded", None)),
        ("s3://bucket/a", IncompleteReadError(actual_bytes=1, expected_bytes=2)),
        ("s3://bucket/a", FlexibleChecksumError(error_msg="body and checksum differ")),
    ):
        storage = open_storage(address)
        said = f"{address}/key: {type(error).__name__}"
        with pytest.raises(StorageError, match=said) as caught, storage._storage_errors("key"):
            raise error
        assert not isinstance(caught.value, StorageRefusedError)


# --- what S3 does to its clients ----------------------------------------------------------------------------------


@pytest.fixture
def bucket(address):
    opened = open_storage(address)
    yield opened
    opened.close()


def test_an_error_that_passes_is_not_seen(bucket, server):
    server.fail(times=1)
    bucket.write("a", b"1")
    server.cut_uploads(times=1)
    bucket.write("a", b"22" * 1000)
    assert bucket.read("a") == b"22" * 1000


def test_an_answer_that_was_lost_is_no_conflict(bucket, server):
    server.lose_answers(times=1)
    version = bucket.replace("lease", b"mine", None)
    assert bucket.read_version("lease") == (b"mine", version)
    server.lose_answers(times=1)
    assert bucket.replace("lease", b"mine too", version) != version


def test_a_storage_that_fails_leaves_what_was_there(bucket, server):
    bucket.write("a", b"old")
    server.fail(only="PUT")
    with pytest.raises(StorageError, match=r"s3://bucket/.*/a: SlowDown") as caught:
        bucket.write("a", b"new")
    assert not isinstance(caught.value, StorageRefusedError)
    server.mend()
    assert bucket.read("a") == b"old"


def test_rights_and_buckets_that_are_gone_are_refusals(bucket, server):
    server.deny()
    with pytest.raises(StorageRefusedError, match=r"AccessDenied.*your rights"):
        bucket.write("a", b"1")
    server.vanish()
    with pytest.raises(StorageRefusedError, match=r"NoSuchBucket.*Check the bucket's name"):
        bucket.read("a")
    server.mend()
    with pytest.raises(StorageRefusedError, match=r"NoSuchBucket"):
        open_storage("s3://nobody-has-this/x").read("a")


def test_without_credentials_it_is_said_what_to_set(monkeypatch, server, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StorageRefusedError, match="Set AWS credentials"):
        open_storage("s3://bucket/x").read("a")


def test_the_product_and_not_the_environment_sets_retries_of_s3(address, server, monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "9")
    storage = open_storage(address)
    server.fail(key="there")
    before = server.requests
    with pytest.raises(StorageError, match="SlowDown"):
        storage.write("there", b"x")
    assert server.requests - before == 3
    server.mend()
    storage.close()
