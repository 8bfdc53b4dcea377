"""Whose data a store namespace is: templates, pure.

A template is a tuple of labels in which `CUSTOMER` stands for the customer's label, or which ends in `SHARED`. Those
before it are constants; whatever follows is the application's. Namespaces are matched against the templates in order.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from shredsaver.customers import exact_id
from shredsaver.errors import ConfigurationError, CustomerUnresolvedError, NamespaceUnmatchedError

Namespace = tuple[str, ...]


@dataclass(frozen=True)
class CustomerMark:
    """Stands in a template for the label that names the customer. Use `CUSTOMER`."""

    decode: Callable[[str], str] | None = field(default=None, repr=False)

    def decoded_by(self, decode: Callable[[str], str]) -> CustomerMark:
        """The mark for labels that are an encoded id, such as those of `label_of`, which `id_of` decodes."""
        return CustomerMark(decode)


@dataclass(frozen=True)
class SharedMark:
    """Ends a template whose items belong to nobody. Use `SHARED`."""


CUSTOMER: Final = CustomerMark()
SHARED: Final = SharedMark()
Mark = str | CustomerMark | SharedMark

SHARED_NAME: Final = ("shared", "deployment")
"""Kind and id of the reserved customer that shared items are sealed under. No customer's id has this kind of token."""


def label_of(customer_id: str) -> str:
    """A label for any id, such as an e-mail address, whose dots LangGraph forbids: base32 unpadded (RFC 4648)."""
    return base64.b32encode(customer_id.encode("utf-8")).decode("ascii").rstrip("=").lower()


def id_of(label: str) -> str:
    """The id that `label_of` made a label of.

    Raises:
        CustomerUnresolvedError: The label is none of those.
    """
    try:
        decoded = base64.b32decode(label.upper() + "=" * (-len(label) % 8)).decode("utf-8")
    except ValueError:
        raise CustomerUnresolvedError("the customer's label of a namespace is none that label_of made") from None
    if label_of(decoded) != label:
        raise CustomerUnresolvedError("the customer's label of a namespace is none that label_of made")
    return decoded


class Owned(NamedTuple):
    """A namespace and whose it is: the customer's id (None: shared), and the labels that are the application's."""

    template: str
    customer_id: str | None
    labels: Namespace


class Reach(NamedTuple):
    """One template that a prefix reaches: with a customer, shared, or (``everyone``) ending before the customer."""

    template: str
    customer_id: str | None
    labels: Namespace
    everyone: bool


class Templates:
    """The templates of a deployment.

    Args:
        templates: What `Shredder.open` was given as ``namespaces``.

    Raises:
        ConfigurationError: A template has no mark or several, or a label that LangGraph does not allow.
    """

    def __init__(self, templates: Sequence[Sequence[Mark]]) -> None:
        self._templates = [_Template(tuple(template)) for template in templates]
        names = [template.name for template in self._templates]
        if len(set(names)) != len(names):
            raise ConfigurationError(f"namespaces= holds a template twice: {', '.join(names)}")

    def owner(self, namespace: Namespace) -> Owned:
        """Whose namespace it is; the first template that fits decides.

        Raises:
            NamespaceUnmatchedError: No template fits.
            CustomerUnresolvedError: The customer's label does not decode.
        """
        for template in self._templates:
            if template.fits(namespace):
                return template.owned(namespace)
        raise self._unmatched(namespace)

    def reach(self, prefix: Namespace) -> list[Reach]:
        """The templates under which namespaces may begin with a prefix.

        Raises:
            NamespaceUnmatchedError: None does.
        """
        found = [template.reach(prefix) for template in self._templates if template.meets(prefix)]
        if not found:
            raise self._unmatched(prefix)
        return found

    def namespace(self, template: str, customer_label: str | None, labels: Namespace) -> Namespace | None:
        """The namespace of some labels under a template; None if the template is not configured any more."""
        for known in self._templates:
            if known.name == template:
                return (*known.constants, *(() if customer_label is None else (customer_label,)), *labels)
        return None

    def _unmatched(self, namespace: Namespace) -> NamespaceUnmatchedError:
        known = ", ".join(template.name for template in self._templates) or "none"
        return NamespaceUnmatchedError(
            f"a namespace of {len(namespace)} labels matches no template (configured: {known}), so nobody can say "
            "whose data it is. Add its shape when opening, for example "
            'namespaces=(("users", CUSTOMER), ("memories", CUSTOMER), ("policies", SHARED))'
        )


class _Template:
    def __init__(self, marks: tuple[Any, ...]) -> None:
        positions = [position for position, mark in enumerate(marks) if not isinstance(mark, str)]
        if len(positions) != 1 or not isinstance(marks[positions[0]], CustomerMark | SharedMark):
            raise ConfigurationError("each template of namespaces= needs CUSTOMER once, or SHARED once")
        self.at = positions[0]
        self.mark: CustomerMark | SharedMark = marks[self.at]
        self.constants: Namespace = marks[: self.at]
        self.rest: Namespace = marks[self.at + 1 :]
        if isinstance(self.mark, SharedMark) and self.rest:
            raise ConfigurationError("SHARED ends a template: whatever follows in a namespace belongs to it")
        for label in (*self.constants, *self.rest):
            if not label or "." in label or "\x00" in label:
                raise ConfigurationError(
                    "a template's labels must be non-empty, without dots and NUL, as LangGraph's are"
                )
        self.name = "/".join(
            (*self.constants, "SHARED" if isinstance(self.mark, SharedMark) else "CUSTOMER", *self.rest)
        )

    def fits(self, namespace: Namespace) -> bool:
        if isinstance(self.mark, SharedMark):
            return namespace[: self.at] == self.constants
        after = namespace[self.at + 1 :]
        return (
            len(namespace) > self.at and namespace[: self.at] == self.constants and after[: len(self.rest)] == self.rest
        )

    def meets(self, prefix: Namespace) -> bool:
        """Whether some namespace under this template begins with the prefix."""
        after = prefix[self.at + 1 :]
        shared = isinstance(self.mark, SharedMark)
        return all(one == other for one, other in zip(prefix, self.constants, strict=False)) and (
            shared or all(one == other for one, other in zip(after, self.rest, strict=False))
        )

    def owned(self, namespace: Namespace) -> Owned:
        if isinstance(self.mark, SharedMark):
            return Owned(self.name, None, namespace[self.at :])
        return Owned(self.name, self._id(namespace[self.at]), namespace[self.at + 1 :])

    def reach(self, prefix: Namespace) -> Reach:
        if isinstance(self.mark, SharedMark):
            return Reach(self.name, None, prefix[self.at :], everyone=False)
        if len(prefix) <= self.at:
            return Reach(self.name, None, (), everyone=True)
        return Reach(self.name, self._id(prefix[self.at]), prefix[self.at + 1 :], everyone=False)

    def _id(self, label: str) -> str:
        decode = self.mark.decode if isinstance(self.mark, CustomerMark) else None
        return exact_id(decode(label) if decode else label, "the customer's label of a namespace")
