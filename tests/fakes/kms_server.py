"""A fake of AWS KMS that keeps key state: a small HTTP server that speaks KMS's JSON 1.1 protocol to the real boto3.

The words of AWS behind each behaviour (API reference and developer guide of AWS KMS):

| behaviour | in AWS's words |
|---|---|
| CreateKey | "Keys with imported key material are created in the PendingImport state"; others Enabled |
| Encrypt, Decrypt, GenerateDataKey on a disabled key | "DisabledException: <ARN> is disabled" |
| the same on one pending deletion | "DisabledException" or "KMSInvalidStateException: <ARN> is pending deletion" |
| the same on one pending import | "KMSInvalidStateException: <ARN> is pending import" |
| Decrypt, another key named | "If you identify a different KMS key, [...] throws an IncorrectKeyException" |
| Decrypt, wrong context or altered | InvalidCiphertextException: "ciphertext, or additional authenticated data" |
| encryption context | "an exact case-sensitive match"; bound injectively, in any order |
| Encrypt | "data up to 4,096 bytes" |
| GetParametersForImport | "must be used together", "valid for 24 hours", a quota of 0.25 a second |
| token of another key | InvalidImportTokenException: "invalid or is associated with a different KMS key" |
| token too old | ExpiredImportTokenException |
| material that does not unwrap | InvalidCiphertextException: "could not decrypt the encrypted (wrapped) key material" |
| other material than before | IncorrectKeyMaterialException: "not the same key material that was previously imported" |
| the same material again | "To restore the usability of the KMS key, reimport the same key material" |
| DeleteImportedKeyMaterial | to PendingImport, but PendingDeletion: "does not change the KMS key's state" |
| import trio on a key of KMS's own | UnsupportedOperationException |
| ScheduleKeyDeletion | "between 7 and 30, inclusive"; "KMSInvalidStateException: <ARN> is pending deletion" |
| CancelKeyDeletion | "When this operation succeeds, the key state [...] is Disabled"; "<ARN> is not pending deletion" |
| after the window | "AWS KMS deletes the KMS key"; NotFoundException from then on |
| TagResource and CreateAlias while pending deletion | KMSInvalidStateException |
| enabling, disabling while pending import | KMSInvalidStateException |
| eventual consistency | "typically [...] less than a few seconds [...] but in some cases it can take several minutes" |
| the same just after CreateKey | "might return a NotFoundException if you call GetParametersForImport immediately" |
| too many keys | LimitExceededException: 100,000 in any state |
| too many requests | ThrottlingException: "You have exceeded the rate at which you may call KMS" |
| another account's key | by its ARN only, and "Cross-account use: No" for the import trio, tags and deletion |
| aliases | for DescribeKey and cryptography; the rest "Specify the key ID or key ARN" |
| lists | pages by Limit and Marker; InvalidMarkerException |

Not kept: grants, policies (denials are injected), asymmetric keys, custom key stores, several materials on one key. RSA
pairs are one for each size and process instead of one for each call, as making them is slow.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, Self

from tests.fakes.kms_faults import ConnectionLostError, Faults, Rates
from tests.fakes.kms_keys import Clock, Key, KmsError, wrapping_key
from tests.fakes.kms_operations import Operations

PREFIX = "TrentService."


class KmsServer:
    """One account and Region of a fake AWS KMS, listening on a port of the loopback interface.

    Args:
        region: The Region in its ARNs.
        propagation: Seconds until a change is visible everywhere.
        flapping: While a change spreads, every second request meets a node that has it already.
    """

    def __init__(self, *, region: str = "eu-central-1", propagation: float = 0.0, flapping: bool = False) -> None:
        self.clock = Clock()
        self.faults = Faults()
        self.rates = Rates(self.clock)
        self.operations = Operations(self.clock, region)
        self.operations.propagation, self.operations.flapping = propagation, flapping
        self.region = region
        self.calls: list[tuple[str, str | None]] = []
        """Every request that arrived: its operation and KeyId."""
        wrapping_key(4096)  # takes seconds, on a bad day as many as a caller waits for an answer
        handler = type("Handler", (_Handler,), {"kms": self})
        self._http = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """What ``AWS_ENDPOINT_URL_KMS`` or ``endpoint_url`` takes."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that send a process's boto3 here."""
        return {
            "AWS_ENDPOINT_URL_KMS": self.url,
            "AWS_ACCESS_KEY_ID": "AKIATEST",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def keys(self) -> dict[str, Key]:
        """Every key there ever was, by id."""
        return self.operations.keys

    def live_keys(self) -> dict[str, Key]:
        """The keys that cost money: neither deleted nor on their way there."""
        return {
            key_id: key for key_id, key in self.keys.items() if key.latest.state not in ("PendingDeletion", "deleted")
        }

    def count(self, operation: str) -> int:
        """How many requests for an operation arrived."""
        return sum(name == operation for name, _ in self.calls)

    def foreign_key(self, account: str = "444455556666") -> str:
        """Makes an enabled key in another account that lets this one use it. Gives its ARN."""
        with self.operations._lock:
            return str(self.operations.create_key({}, account=account)["KeyMetadata"]["Arn"])

    def answer(self, operation: str, request: dict[str, Any], authorization: str) -> dict[str, Any]:
        """One request: faults, quotas, the operation, faults again."""
        key = request.get("KeyId")
        self.calls.append((operation, key))
        self.faults.run(operation, key, "before")
        if not authorization.startswith("AWS4-HMAC-SHA256 Credential="):
            raise KmsError("MissingAuthenticationTokenException")
        self.rates.take(operation)
        try:
            return self.operations.call(operation, request)
        finally:
            self.faults.run(operation, key, "after")

    def close(self) -> None:
        """Stops listening; state is kept."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Callers that were killed are part of the tests; nothing to print."""


class _Handler(BaseHTTPRequestHandler):
    kms: ClassVar[KmsServer]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """One request of the JSON 1.1 protocol."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        target = self.headers.get("X-Amz-Target") or ""
        try:
            if not target.startswith(PREFIX):
                raise KmsError("UnknownOperationException", status=404)
            request = json.loads(body)
            reply = self.kms.answer(target.removeprefix(PREFIX), request, self.headers.get("Authorization") or "")
            self._send(200, reply)
        except KmsError as error:
            self._send(error.status, {"__type": error.code, "message": error.text})
        except ConnectionLostError:
            self.close_connection = True
            self.connection.close()

    def _send(self, status: int, reply: dict[str, Any]) -> None:
        data = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Date", self.date_time_string(int(time.time())))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Nothing: the calls are in `KmsServer.calls`."""
