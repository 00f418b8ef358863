"""S3 and what speaks its protocol, by the AWS SDK: `s3://bucket/prefix`; an extra.

Credentials, region, endpoint (`AWS_ENDPOINT_URL`) and proxies come from where every tool of AWS takes them.
"""

import contextlib
import http.client
from collections.abc import Iterable, Iterator
from typing import Any

from kanawa.config import Size
from kanawa.contracts import ObjectMissingError, StorageConflictError, StorageError, StorageRefusedError

from kanawa_runtime.storage.bucket import BucketStorage, PastTheEndError, missing_extra

#: Of one `DeleteObjects`.
_MOST_DELETED = 1000
_ABSENT = {"NoSuchKey", "404", "NotFound"}
_CONFLICT = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
_PAST_THE_END = {"InvalidRange", "416"}
_REFUSED = {
    "AccessDenied",
    "AllAccessDisabled",
    "AuthorizationHeaderMalformed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidBucketName",
    "InvalidToken",
    "NoSuchBucket",
    "PermanentRedirect",
    "SignatureDoesNotMatch",
    "403",
}


class S3Storage(BucketStorage):
    """Objects of a bucket. A version is an ETag; `replace` is a PUT with If-Match or If-None-Match."""

    class Config(BucketStorage.Config):
        connect_seconds: Size = 5
        read_seconds: Size = 30
        attempts: Size = 3

    def _open(self) -> Any:
        import boto3
        from botocore.config import Config

        # More connections than the SDK's ten: a save writes, and a restore reads, many objects at once.
        limits = Config(
            connect_timeout=self.config.connect_seconds,
            read_timeout=self.config.read_seconds,
            max_pool_connections=32,
            # Said here and not left to the SDK, whose default takes minutes of an outage, nor to AWS_MAX_ATTEMPTS.
            retries={"mode": "standard", "total_max_attempts": self.config.attempts},
        )
        return boto3.session.Session().client("s3", config=limits)

    def _get(self, key: str, start: int, size: int | None) -> bytes:
        last = "" if size is None else start + size - 1
        span = {} if start == 0 and size is None else {"Range": f"bytes={start}-{last}"}
        return self._got(key, **span)[0]

    def read_version(self, key: str) -> tuple[bytes, str]:
        """Returns an object and its ETag."""
        return self._got(key)

    def _got(self, key: str, **span: str) -> tuple[bytes, str]:
        tries = 3
        for attempt in range(tries):
            with self._storage_errors(key):
                answer = self._client.get_object(Bucket=self.bucket, Key=self._prefix + key, **span)
            # The SDK retries a request, but not a body that ends before its time.
            try:
                with self._storage_errors(key):
                    return answer["Body"].read(), answer["ETag"]
            except StorageError:
                if attempt == tries - 1:
                    raise
        raise AssertionError

    def _condition(self, version: str | None) -> dict[str, str]:
        return {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}

    def _put(self, key: str, data: bytes | bytearray | memoryview, **condition: str) -> str:
        body = data if isinstance(data, bytes) else bytes(data)
        with self._storage_errors(key):
            answer = self._client.put_object(Bucket=self.bucket, Key=self._prefix + key, Body=body, **condition)
            return str(answer["ETag"])

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Lists; see the contract."""
        sizes = {}
        with self._storage_errors(prefix):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self.bucket, Prefix=self._prefix + prefix):
                for entry in page.get("Contents", ()):
                    sizes[entry["Key"].removeprefix(self._prefix)] = int(entry["Size"])
        return sizes

    def delete(self, keys: Iterable[str]) -> None:
        """Removes objects, a thousand a request."""
        names = [self._prefix + key for key in keys]
        for first in range(0, len(names), _MOST_DELETED):
            objects = [{"Key": name} for name in names[first : first + _MOST_DELETED]]
            with self._storage_errors(""):
                answer = self._client.delete_objects(Bucket=self.bucket, Delete={"Objects": objects, "Quiet": True})
            for failed in answer.get("Errors", ()):
                message = f"s3://{self.bucket}/{failed['Key']} can't be deleted: {failed.get('Message')}"
                raise StorageError(message)

    def copy(self, source: str, target: str) -> None:
        """Copies without bringing the bytes here."""
        place = {"Bucket": self.bucket, "Key": self._prefix + source}
        with self._storage_errors(source):
            self._client.copy_object(Bucket=self.bucket, Key=self._prefix + target, CopySource=place)

    @contextlib.contextmanager
    def _storage_errors(self, key: str) -> Iterator[None]:
        """Turns the SDK's errors into StorageErrors, by S3's error codes."""
        try:
            from botocore.exceptions import (
                BotoCoreError,
                ClientError,
                FlexibleChecksumError,
                HTTPClientError,
                IncompleteReadError,
            )
            from botocore.exceptions import ConnectionError as NoConnectionError
        except ImportError as error:
            raise missing_extra(self.address, "s3") from error

        place = f"{self.address}/{key}".rstrip("/")
        try:
            yield
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            message = f"{place}: {code}: {error.response.get('Error', {}).get('Message', error)}"
            if code in _ABSENT:
                raise ObjectMissingError(message) from error
            if code in _CONFLICT:
                raise StorageConflictError(message) from error
            if code in _PAST_THE_END:
                raise PastTheEndError(message) from error
            if code in _REFUSED:
                advice = f"{message}. Check the bucket's name, its region and your rights"
                raise StorageRefusedError(advice) from error
            raise StorageError(message) from error
        except (
            HTTPClientError,
            NoConnectionError,
            IncompleteReadError,
            FlexibleChecksumError,
            http.client.HTTPException,
            OSError,
        ) as error:
            message = f"{place}: {type(error).__name__}: {error}"
            raise StorageError(message) from error
        except BotoCoreError as error:  # no credentials, no region, a profile that isn't there
            message = f"{place}: {type(error).__name__}: {error}. Set AWS credentials and AWS_DEFAULT_REGION"
            raise StorageRefusedError(message) from error
