"""An older key store beside the KMS keys of the account: which roots still open, and which keys it does not know.

The lost key store made keys since. They are found by their tags, recorded, and taken over, so that the rotation which
follows destroys them with proof: should that key store turn up, it opens nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from shredsaver.errors import KeyAccessDeniedError, KeyServiceUnavailableError, KeyStoreStaleError
from shredsaver.kms.aws_calls import KmsCalls
from shredsaver.kms.aws_errors import KmsKeyMissingError
from shredsaver.kms.aws_making import TAG, text
from shredsaver.kms.aws_material import PUT_OFF, RootMaterial
from shredsaver.kms.aws_registry import CLEARING, SPARE, USED, KmsKey, Registry
from shredsaver.kms.roots import Epoch, Standing

_ROOT: Final = 32
_TOKEN: Final = timedelta(hours=24)


class _Key(NamedTuple):
    arn: str
    epoch: int
    state: str
    row: KmsKey


class OlderStore:
    """Compares an older key store with the account.

    Args:
        calls: AWS KMS.
        registry: The KMS keys that the key store knows.
        deployment: The deployment, as the keys' tags name it.
        alone: Whether each customer has a slot alone.
        opens: Opens a root from KMS itself, as `Roots.open`.
        context: The encryption context of a root.
    """

    def __init__(
        self,
        calls: KmsCalls,
        registry: Registry,
        deployment: bytes,
        alone: bool,
        opens: Callable[[Epoch], bytes],
        context: Callable[[Epoch], Mapping[str, str]],
    ) -> None:
        self._calls, self._registry, self._deployment = calls, registry, deployment
        self._alone, self._opens, self._context = alone, opens, context

    def survey(self, live: Sequence[Epoch], *, take_over: bool) -> tuple[list[Standing], list[str]]:
        """How each slot stands; with ``take_over``, with what takes over the newest root of those that went on.

        Also gives what the keys' tags say of the log of the dead.

        Raises:
            KeyServiceUnavailableError: The newest key of a slot cannot be used, or AWS cannot be reached.
        """
        ours, logs = self._ours(record=take_over)
        known = {epoch.slot: epoch for epoch in live}
        standings = []
        for slot in sorted(known.keys() | ours.keys()):
            epoch = known.get(slot, Epoch(slot, 0))
            put_off = epoch.material == PUT_OFF.pack()
            since = epoch.epoch - put_off  # one that was put off may have been made since
            newer = [key for key in ours.get(slot, ()) if key.epoch > since and key.state == "Enabled"]
            readable = put_off or (epoch.epoch > 0 and self._readable(epoch))
            if not newer and readable:
                standings.append(Standing(slot, epoch.epoch, epoch.epoch, readable=True))
                continue
            if not newer and self._alone and epoch.epoch:
                # Its customer is gone: the next root was put off, and no key was made for it.
                standings.append(Standing(slot, epoch.epoch, epoch.epoch + 1, readable=False, material=PUT_OFF.pack()))
                continue
            if not newer:
                raise KeyServiceUnavailableError(
                    f"slot {slot} has gone on from epoch {epoch.epoch}, and no KMS key of a newer epoch is enabled: "
                    "see to the account's keys with the deployment's tag first",
                    retryable=False,
                )
            newest = max(newer, key=lambda key: key.epoch)
            material = self._take_over(slot, newest) if take_over else b""
            standings.append(Standing(slot, epoch.epoch, newest.epoch, readable and not put_off, material))
        return standings, logs

    def _readable(self, epoch: Epoch) -> bool:
        try:
            self._opens(epoch)
        except KeyStoreStaleError:
            return False
        return True

    def _ours(self, *, record: bool) -> tuple[dict[int, list[_Key]], list[str]]:
        """The deployment's keys by slot, as their tags have it, and what these say of the log of the dead.

        Those that serve no slot are recorded to be cleared.
        """
        known = {key.arn for key in self._registry.all()}
        found: dict[int, list[_Key]] = {}
        logs = []
        for arn in self._calls.key_arns():
            try:
                tags = self._calls.tags(arn)
                if tags.get(f"{TAG}deployment") != self._deployment.hex():
                    continue
                seen = self._calls.describe(arn)
            except (KmsKeyMissingError, KeyAccessDeniedError):
                continue  # a key that is not ours to see is not ours
            logs.append(tags.get(f"{TAG}log", ""))
            numbers = [tags.get(f"{TAG}{name}", "") for name in ("slot", "epoch")]
            slot, epoch = (int(number) if number.isdecimal() else SPARE for number in numbers)
            until = text(datetime.now(UTC) + _TOKEN) if seen.origin == "EXTERNAL" else ""
            nonce = bytes.fromhex(tags.get(f"{TAG}nonce", "")) or os.urandom(16)
            row = KmsKey(nonce, seen.created_at.timestamp(), arn, until, USED, slot, epoch)
            if slot == SPARE or seen.state == "PendingImport":
                if record and arn not in known:
                    self._registry.stray(row._replace(state=CLEARING))
            else:
                found.setdefault(slot, []).append(_Key(arn, epoch, seen.state, row))
        return found, logs

    def _take_over(self, slot: int, key: _Key) -> bytes:
        """A root of our own under a key that the lost key store made: what is destroyed with it are both."""
        self._registry.stray(key.row)
        context = self._context(Epoch(slot, key.epoch))
        return RootMaterial(key.arn, self._calls.encrypt(key.arn, os.urandom(_ROOT), context)).pack()
