"""A certificate from a receipt: one self-contained page for a person, to read on a phone or to print on A4.

It has a place for what NIST SP 800-88 names for a certificate of sanitisation: what, how, with which tool and version,
how it was verified, who, when. It says no more than the receipt.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from shredsaver.receipts import VerifiedReceipt

_STYLE: Final = """
:root{color-scheme:light;--ink:#17202a;--soft:#5d6874;--line:#d8dee5;--good:#14653a;--wait:#8a5a00}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem 1rem 3rem;max-width:46rem;
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
color:var(--ink);background:#fff}
h1{font-size:1.6rem;line-height:1.2;margin:0 0 .25rem}
h2{font-size:1.05rem;margin:2rem 0 .5rem;padding-bottom:.25rem;border-bottom:1px solid var(--line)}
p{margin:.4rem 0}
.state{font-weight:600;color:var(--good)}
.state.pending{color:var(--wait)}
.soft{color:var(--soft)}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.35rem .5rem .35rem 0;border-bottom:1px solid var(--line)}
th{font-weight:500;color:var(--soft);width:38%}
td{overflow-wrap:anywhere}
td code{word-break:break-all}
table.sign td,table.sign th{height:2.6rem;vertical-align:bottom}
table.counts th,table.counts td{width:auto}
table.counts td{text-align:right;font-variant-numeric:tabular-nums}
table.counts thead th+th{text-align:right}
code{font:.85em/1.45 ui-monospace,"SF Mono",Consolas,monospace;overflow-wrap:anywhere}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font:.72rem/1.45 ui-monospace,"SF Mono",Consolas,monospace;
border:1px solid var(--line);border-radius:4px;padding:.75rem;margin:.5rem 0}
ul{margin:.4rem 0;padding-left:1.2rem}
@media print{@page{size:A4;margin:18mm}body{max-width:none;padding:0;font-size:10.5pt}
h2{break-after:avoid;margin-top:1.3rem}
tr,table.counts,table.sign{break-inside:avoid}th,td{padding:.2rem .5rem .2rem 0}}
"""


def page(receipt: VerifiedReceipt, jws: str) -> str:
    """The certificate as HTML: no scripts, nothing from outside."""
    said: Mapping[str, Any] = receipt.payload
    pending = said.get("pending") or []
    when, how, what = said.get("when", {}), said.get("how", {}), said.get("what", {})
    state = "Not complete yet" if pending else "Complete"
    heading = (
        f"<h1>Certificate of erasure</h1><p class='state{' pending' if pending else ''}'>{_text(state)}</p>"
        f"<p class='soft'>Erasure {_code(said.get('erasure'))}, receipt number {_text(said.get('number'))}, issued "
        f"{_text(_time(said.get('issued_at')))}</p>"
    )
    sections = [
        heading,
        _section("Who", _who(said)),
        _section("When", _fields({name: _time(when.get(name)) or "not yet" for name in _STEPS})),
        _section("What was held, and what is left", _counts(what)),
        _section("How it was destroyed", _fields(_how(how, said))),
    ]
    if said.get("targets"):
        sections.append(_section("Elsewhere", _targets(said["targets"])))
    if pending:
        items = "".join(f"<li>{_text(step)}</li>" for step in pending)
        sections.append(_section("Still to be done", f"<ul>{items}</ul>"))
    limits = "".join(f"<li>{_text(limit)}</li>" for limit in said.get("out_of_scope", []))
    sections.append(_section("Not covered by this certificate", f"<ul>{limits}</ul>"))
    sections.append(_section("How to check it", _checking(receipt, said, jws)))
    sections.append(_section("For your files", _SIGNING))
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Certificate of erasure</title><style>{_STYLE}</style></head><body>{''.join(sections)}</body></html>\n"
    )


class _Code(str):
    """A value to be shown letter by letter."""

    __slots__ = ()


_ROUTES: Final = ("threads", "checkpoints", "writes", "parts", "items", "namespaces")
_STEPS: Final = ("requested", "revoked", "destroyed", "purged", "verified")


_SIGNING: Final = (
    "<p class='soft'>Not part of the signed receipt.</p>"
    "<table class='sign'><tr><th>carried out by (name, role)</th><td></td></tr>"
    "<tr><th>place and date</th><td></td></tr><tr><th>signature</th><td></td></tr></table>"
)


def _who(said: Mapping[str, Any]) -> str:
    who, why = said.get("who", {}), said.get("why", {})
    return _fields(
        {
            "person": _Code(f"commitment {who.get('commitment')}"),
            "known to the system": "yes" if who.get("known") else "no: only a tombstone was set",
            "generation": who.get("generation"),
            "reason": _given(why.get("reason")),
            "requested by": _given(why.get("requested_by")),
            "system": _Code(f"deployment {said.get('deployment')}"),
        }
    )


def _given(found: Mapping[str, str] | None) -> str:
    if not found:
        return "not given"
    return found.get("code") or _Code(f"commitment {found.get('commitment')}")


def _how(how: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": "cryptographic erase: the person's keys were destroyed, every copy of the data is ciphertext",
        "method": how.get("method") or "there was no key to destroy",
        "assurance": how.get("assurance"),
        "root key": f"slot {how.get('slot')}, epoch {how.get('old_epoch')} destroyed, {how.get('new_epoch')} in use",
        "keys": ", ".join(how.get("key_ids") or []),
        "state of the keys": how.get("state"),
        "final at": _time(how.get("pending_until")),
        "in memory elsewhere until": _time(how.get("cached_until")),
        "verified by": _verified(said.get("verification") or {}),
        "tool": said.get("tool"),
    }


def _verified(found: Mapping[str, Any]) -> str:
    text = "counting all routes again, and asking the key service for the keys, which it refused"
    if not found:
        return text
    sampled, keys = sum(dict(found.get("sampled") or {}).values()), found.get("keys_tried")
    if not sampled:
        return f"{text}; no sealed record was left to try"
    return f"{text}; trying to open {sampled} of the records that are left with {keys} other keys: none opened"


def _counts(what: Mapping[str, Any]) -> str:
    before, after = what.get("before", {}), what.get("after", {})
    rows = "".join(
        f"<tr><th>{_text(route)}</th><td>{_text(before.get(route, 0))}</td><td>{_text(after.get(route, 0))}</td></tr>"
        for route in (
            *(known for known in _ROUTES if known in before or known in after),
            *sorted({*before, *after} - {*_ROUTES}),
        )
    )
    unnamed = what.get("threads_unnamed")
    told = f"<p class='soft'>{_text(unnamed)} threads could not be named to systems elsewhere.</p>" if unnamed else ""
    kept = (
        told if what.get("purge") else "<p class='soft'>The ciphertext was left in place; nothing opens it.</p>" + told
    )
    head = "<thead><tr><th>route</th><th>before</th><th>after</th></tr></thead>"
    return f"<table class='counts'>{head}<tbody>{rows}</tbody></table>{kept}"


def _targets(targets: Mapping[str, Mapping[str, Any]]) -> str:
    return _fields(
        {
            name: f"{found.get('status')} at {_time(found.get('at'))}, {found.get('attempts')} attempts"
            + (f", {found['error']}" if found.get("error") else "")
            for name, found in targets.items()
        }
    )


def _checking(receipt: VerifiedReceipt, said: Mapping[str, Any], jws: str) -> str:
    return (
        "<p>Save the text below as <code>receipt.txt</code>, get the operator's public key by another way, and run "
        "<code>shredsaver verify receipt.txt --key public.pem</code>. Any tool that knows JWS with Ed25519 will do.</p>"
        + _fields(
            {
                "signing key": _Code(receipt.key_id),
                "receipt before": _Code(said["previous"]) if said.get("previous") else "none: the first of its chain",
                "this receipt (SHA-256)": _Code(receipt.digest),
            }
        )
        + f"<pre>{_text(jws)}</pre><p class='soft'>It is the operator's signed statement. It cannot prove that nobody "
        "copied a key before.</p>"
    )


def _section(title: str, body: str) -> str:
    return f"<h2>{_text(title)}</h2>{body}"


def _fields(fields: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{_text(name)}</th><td>{_code(value) if isinstance(value, _Code) else _text(value)}</td></tr>"
        for name, value in fields.items()
        if value not in (None, "")
    )
    return f"<table>{rows}</table>"


def _code(value: object) -> str:
    return f"<code>{_text(value)}</code>"


def _time(value: object) -> str | None:
    """A time as a person writes it; whatever is none, as it is."""
    try:
        return f"{datetime.fromisoformat(str(value)).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if value else None
    except ValueError:
        return str(value)


def _text(value: object) -> str:
    return html.escape(str(value))
