"""What the key store holds of a root in AWS KMS: no secret, but the root encrypted under its KMS key."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgpack

from shredsaver.errors import FormatError
from shredsaver.kms.roots import Epoch

_VERSION: Final = 1


class RootMaterial(NamedTuple):
    """A root as it is stored.

    Attributes:
        arn: Its KMS key; "" for a root that was put off because nothing was wrapped in its slot.
        wrapped: The root encrypted under that key, and then under the tenant's own if there is one.
        own: The ARN of a KMS key of the tenant's own, or "".
        probe: Something encrypted under ``arn`` alone, where ``wrapped`` is not.
    """

    arn: str
    wrapped: bytes
    own: str = ""
    probe: bytes = b""

    def pack(self) -> bytes:
        """The bytes of `Epoch.material`."""
        return bytes(msgpack.packb([_VERSION, *self]))

    @classmethod
    def unpack(cls, epoch: Epoch, material: bytes | None = None) -> RootMaterial:
        """Reads what `pack` gave.

        Raises:
            FormatError: It is something else, or of a version from the future.
        """
        try:
            version, arn, wrapped, own, probe = msgpack.unpackb(epoch.material if material is None else material)
            kinds = isinstance(arn, str) and isinstance(own, str)
            if version != _VERSION or not kinds or not isinstance(wrapped, bytes) or not isinstance(probe, bytes):
                raise ValueError
        except (ValueError, TypeError, msgpack.UnpackException):
            raise FormatError(f"the root of slot {epoch.slot}, epoch {epoch.epoch} is no root of AWS KMS") from None
        return cls(arn, wrapped, own, probe)


PUT_OFF: Final = RootMaterial("", b"")
"""A root to be made when it is first asked for."""
