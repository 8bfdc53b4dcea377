"""One account and Region of the fake of AWS KMS: keys, their state as a request sees it, tags, aliases, lists."""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.fakes.kms_keys import ACCOUNT, Ciphertexts, Clock, Key, KmsError, Version

Json = dict[str, Any]
TAG_TEXT: Final = re.compile(r"[\w .:/=+\-@]*")


def invalid(message: str) -> KmsError:
    """The error of a malformed request."""
    return KmsError("ValidationException", message)


def blob(request: Json, name: str, maximum: int) -> bytes:
    """A base64 member of 1 to ``maximum`` bytes."""
    data = base64.b64decode(request.get(name) or "")
    if not 1 <= len(data) <= maximum:
        raise invalid(f"'{name}' failed to satisfy constraint: length between 1 and {maximum}")
    return data


def text(data: bytes) -> str:
    """Bytes as JSON carries them."""
    return base64.b64encode(data).decode()


class Account:
    """What the operations work on; their names are those of boto3, requests and answers are JSON objects."""

    def __init__(self, clock: Clock, region: str) -> None:
        self.clock, self.region = clock, region
        self.propagation = 0.0
        """Seconds until a change is visible everywhere."""
        self.flapping = False
        """While a change spreads, every second request meets a node that has it already."""
        self.key_quota = 100_000
        self.pending_deletion_error = "KMSInvalidStateException"
        """The table allows `DisabledException` as well."""
        self.keys: dict[str, Key] = {}
        self.aliases: dict[str, str] = {}
        self._tokens: dict[bytes, tuple[str, int, float]] = {}
        self._ciphertexts = Ciphertexts()
        self._lock = threading.RLock()
        self._reads = 0

    # Finding keys and their state.

    def resolve(self, key_id: str | None, *, alias: bool = False, foreign: bool = False) -> Key:
        """The key a request names by id, ARN, alias or alias ARN.

        Aliases and other accounts only where AWS takes them.
        """
        name = key_id or ""
        if not name:
            raise invalid("'keyId' failed to satisfy constraint: Member must not be null")
        account = ACCOUNT
        if name.startswith("arn:"):
            parts = name.split(":", 5)
            if len(parts) != 6 or parts[:3] != ["arn", "aws", "kms"] or not parts[5].startswith(("key/", "alias/")):
                raise KmsError("InvalidArnException", f"Invalid arn {name}")
            if parts[3] != self.region:
                raise KmsError("NotFoundException", f"Invalid arn {parts[3]}")
            account = parts[4]
            name = parts[5].removeprefix("key/")
        if name.startswith("alias/"):
            if not alias:
                raise KmsError("NotFoundException", f"Invalid keyId {name}")
            name = self.aliases.get(name, "")
        key = self.keys.get(name)
        if key is None or key.account != account or self._visible(key) is None:
            raise KmsError("NotFoundException", f"Key '{key_id}' does not exist")
        if key.account != ACCOUNT and not foreign:
            raise KmsError("AccessDeniedException", "The operation is not allowed on a key of another account")
        if self.state(key) == "deleted":
            raise KmsError("NotFoundException", f"Key '{key.arn}' does not exist")
        return key

    def _visible(self, key: Key) -> Version | None:
        self._reads += 1
        return key.visible(self.clock.now(), ahead=self.flapping and self._reads % 2 == 0)

    def state(self, key: Key) -> str:
        """The key's state as this request sees it."""
        version = self._visible(key)
        return "deleted" if version is None else version.state

    def _change(self, key: Key, **changes: Any) -> None:
        key.change(self.clock.now() + self.propagation, **changes)

    def _usable(self, key: Key) -> bytes:
        version = self._visible(key)
        state = "deleted" if version is None else version.state
        if state == "Disabled":
            raise KmsError("DisabledException", f"{key.arn} is disabled.")
        if state == "PendingDeletion":
            raise KmsError(self.pending_deletion_error, f"{key.arn} is pending deletion.")
        if version is None or state != "Enabled" or version.material is None:
            raise KmsError("KMSInvalidStateException", f"{key.arn} is pending import.")
        return version.material

    def _not(self, key: Key, *states: str) -> None:
        if (state := self.state(key)) in states:
            words = {"PendingDeletion": "pending deletion", "PendingImport": "pending import"}
            raise KmsError("KMSInvalidStateException", f"{key.arn} is {words[state]}.")

    # Tags, aliases, lists.

    def _tags(self, given: Sequence[Mapping[str, str]], old: Mapping[str, str] | None = None) -> dict[str, str]:
        tags = dict(old or {})
        names = [tag["TagKey"] for tag in given]
        if len(set(names)) != len(names) or any(name.startswith("aws:") for name in names):
            raise KmsError("TagException", "a tag key occurs twice, or begins with aws:")
        for tag in given:
            name, value = tag["TagKey"], tag["TagValue"]
            sound = 1 <= len(name) <= 128 and len(value) <= 256
            if not (sound and TAG_TEXT.fullmatch(name) and TAG_TEXT.fullmatch(value)):
                raise KmsError("TagException", "a tag key or value is too long, or has a character it may not have")
            tags[name] = value
        if len(tags) > 50:
            raise KmsError("LimitExceededException", "at most 50 tags")
        return tags

    def tag_resource(self, request: Json) -> Json:
        """Adds or replaces tags."""
        key = self.resolve(request.get("KeyId"))
        self._not(key, "PendingDeletion")
        self._change(key, tags=self._tags(request["Tags"], key.latest.tags))
        return {}

    def untag_resource(self, request: Json) -> Json:
        """Removes tags; those it does not have are no error."""
        key = self.resolve(request.get("KeyId"))
        self._not(key, "PendingDeletion")
        gone = set(request["TagKeys"])
        self._change(key, tags={name: value for name, value in key.latest.tags.items() if name not in gone})
        return {}

    def list_resource_tags(self, request: Json) -> Json:
        """Pages of 50."""
        version = self._visible(self.resolve(request.get("KeyId")))
        tags = sorted((version.tags if version else {}).items())
        return self._page(request, "Tags", [{"TagKey": name, "TagValue": value} for name, value in tags], 50, 50)

    def list_keys(self, request: Json) -> Json:
        """Pages of 100 unless asked for up to 1,000; every state but deleted."""
        own = (key for key in self.keys.values() if key.account == ACCOUNT and self.state(key) != "deleted")
        rows = [{"KeyId": key.key_id, "KeyArn": key.arn} for key in sorted(own, key=lambda key: key.key_id)]
        return self._page(request, "Keys", rows, 100, 1000)

    def create_alias(self, request: Json) -> Json:
        """A name for a key."""
        name = str(request["AliasName"])
        if not re.fullmatch(r"alias/[a-zA-Z0-9/_-]+", name) or name.startswith("alias/aws/"):
            raise KmsError("InvalidAliasNameException")
        if name in self.aliases:
            raise KmsError("AlreadyExistsException", f"An alias with the name {name} already exists")
        key = self.resolve(request.get("TargetKeyId"))
        self._not(key, "PendingDeletion")
        self.aliases[name] = key.key_id
        return {}

    def delete_alias(self, request: Json) -> Json:
        """The name, not the key."""
        if self.aliases.pop(str(request["AliasName"]), None) is None:
            raise KmsError("NotFoundException", "Alias is not found")
        return {}

    def list_aliases(self, request: Json) -> Json:
        """Pages of 50 unless asked for up to 100."""
        only = self.resolve(request["KeyId"]).key_id if request.get("KeyId") else None
        prefix = f"arn:aws:kms:{self.region}:{ACCOUNT}:"
        rows = [
            {"AliasName": name, "AliasArn": prefix + name, "TargetKeyId": key_id}
            for name, key_id in sorted(self.aliases.items())
            if only in (None, key_id)
        ]
        return self._page(request, "Aliases", rows, 50, 100)

    def _page(self, request: Json, name: str, rows: list[Json], default: int, maximum: int) -> Json:
        limit = int(request.get("Limit") or default)
        if not 1 <= limit <= maximum:
            raise invalid(f"'limit' failed to satisfy constraint: between 1 and {maximum}")
        start = 0
        if marker := request.get("Marker"):
            if not re.fullmatch(r"m-[0-9]{1,9}", marker):
                raise KmsError("InvalidMarkerException")
            start = int(marker[2:])
        more = start + limit < len(rows)
        return {name: rows[start : start + limit], "Truncated": more} | (
            {"NextMarker": f"m-{start + limit}"} if more else {}
        )
