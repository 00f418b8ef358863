"""What the drivers of object stores have in common: addresses, the missing extra, and an answer that was lost."""

from kanawa.contracts import ObjectMissingError, Storage, StorageConflictError, StorageRefusedError


def bucket_and_prefix(address: str) -> tuple[str, str]:
    """Returns a bucket and the prefix of its keys, which is empty or ends with a slash. Raises StorageRefusedError."""
    bucket, _, prefix = address.partition("://")[2].partition("/")
    if not bucket:
        scheme = address.partition(":")[0]
        message = f"{address!r} names no bucket; expected {scheme}://BUCKET/FOLDER"
        raise StorageRefusedError(message)
    prefix = prefix.strip("/")
    return bucket, f"{prefix}/" if prefix else ""


def missing_extra(address: str, extra: str) -> StorageRefusedError:
    """Returns the error of a driver whose library is not installed."""
    return StorageRefusedError(f"{address}: its client is not installed: pip install 'kanawa-runtime[{extra}]'")


def written_by_us(storage: Storage, key: str, data: bytes) -> str:
    """Returns the version of an object that holds exactly `data`, after a conflict; raises StorageConflictError else.

    A conditional write whose answer was lost is sent again by the client, and then meets itself.
    """
    try:
        there, version = storage.read_version(key)
    except ObjectMissingError:
        there, version = b"", ""
    if there == data:
        return version
    message = f"{storage.address}/{key} was written by another process meanwhile"
    raise StorageConflictError(message)
