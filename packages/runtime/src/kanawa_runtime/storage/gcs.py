"""Google Cloud Storage, by Google's client: `gs://bucket/prefix`; an extra.

Credentials and project come from where every tool of Google takes them; `STORAGE_EMULATOR_HOST` names another server.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from kanawa.config import Size
from kanawa.contracts import ObjectMissingError, StorageConflictError, StorageError, StorageRefusedError

from kanawa_runtime.storage.bucket import BucketStorage, PastTheEndError, missing_extra

_NOT_FOUND, _CONFLICT, _PAST_THE_END, _REFUSED = 404, 412, 416, {400, 401, 403}


class GcsStorage(BucketStorage):
    """Objects of a bucket. A version is a generation, and `replace` a write with `ifGenerationMatch`."""

    class Config(BucketStorage.Config):
        read_seconds: Size = 30
        retry_seconds: Size = 60

    def _blob(self, key: str) -> Any:
        return self._handle().blob(self._prefix + key)

    def _handle(self) -> Any:
        return self._client.bucket(self.bucket)

    def _open(self) -> Any:
        from google.cloud import storage

        return storage.Client()

    @property
    def _limits(self) -> dict[str, Any]:
        from google.cloud.storage.retry import DEFAULT_RETRY

        # Every write here is one that may be repeated: it puts a whole object, or is conditional.
        return {"timeout": self.config.read_seconds, "retry": DEFAULT_RETRY.with_timeout(self.config.retry_seconds)}

    def _get(self, key: str, start: int, size: int | None) -> bytes:
        last = None if size is None else start + size - 1
        with self._storage_errors(key):
            data: bytes = self._blob(key).download_as_bytes(start=start or None, end=last, **self._limits)
            return data

    def read_version(self, key: str) -> tuple[bytes, str]:
        """Returns an object and its generation."""
        tries = 5
        for attempt in range(tries):
            try:
                with self._storage_errors(key):
                    blob = self._blob(key)
                    blob.reload(**self._limits)
                    generation = blob.generation
                    # Of that generation: between the two requests somebody may write another.
                    return blob.download_as_bytes(if_generation_match=generation, **self._limits), str(generation)
            except StorageConflictError:
                if attempt == tries - 1:
                    raise
        raise AssertionError

    def _condition(self, version: str | None) -> dict[str, Any]:
        return {"if_generation_match": int(version or 0)}

    def _put(self, key: str, data: bytes | bytearray | memoryview, **condition: Any) -> str:
        with self._storage_errors(key):
            blob = self._blob(key)
            blob.upload_from_string(bytes(data), checksum="crc32c", **condition, **self._limits)
            return str(blob.generation)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Lists; see the contract."""
        with self._storage_errors(prefix):
            blobs = self._handle().list_blobs(prefix=self._prefix + prefix, **self._limits)
            return {blob.name.removeprefix(self._prefix): int(blob.size) for blob in blobs}

    def delete(self, keys: Iterable[str]) -> None:
        """Removes objects one by one."""
        for key in keys:
            with contextlib.suppress(ObjectMissingError), self._storage_errors(key):
                self._blob(key).delete(**self._limits)

    @contextlib.contextmanager
    def _storage_errors(self, key: str) -> Iterator[None]:
        """Turns the client's errors into StorageErrors, by their HTTP status."""
        try:
            from google.api_core.exceptions import GoogleAPICallError, RetryError
            from google.auth.exceptions import GoogleAuthError
        except ImportError as error:
            raise missing_extra(self.address, "gcs") from error

        place = f"{self.address}/{key}".rstrip("/")
        try:
            yield
        except GoogleAPICallError as error:
            message = f"{place}: {error.code}: {error.message}"
            if error.code == _NOT_FOUND and "bucket does not exist" not in str(error):
                raise ObjectMissingError(message) from error
            if error.code == _CONFLICT:
                raise StorageConflictError(message) from error
            if error.code == _PAST_THE_END:
                raise PastTheEndError(message) from error
            if error.code in _REFUSED or error.code == _NOT_FOUND:
                advice = f"{message}. Check the bucket's name and your rights"
                raise StorageRefusedError(advice) from error
            raise StorageError(message) from error
        # RetryError is raised when retries time out, and isn't an error of the calls.
        except (RetryError, GoogleAuthError, OSError) as error:
            message = f"{place}: {type(error).__name__}: {error}"
            kind = StorageRefusedError if isinstance(error, GoogleAuthError) else StorageError
            raise kind(message) from error
