"""Dependencies point one way, the pure modules do no I/O, one module touches a cipher: read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Bytes in, bytes out; `erasure` gives plans of effects. They import each other, and of this library nothing else.
PURE = {"errors", "keytree", "sealing", "elements", "parts", "manifest", "records", "erasure", "filters", "receipts"}
PURE |= {"results"}
PURE_MAY_IMPORT = {
    "__future__", "array", "base64", "binascii", "bisect", "collections", "contextlib", "cryptography", "dataclasses",
    "datetime", "enum", "functools", "hashlib", "hmac", "itertools", "json", "math", "msgpack", "operator",
    "ormsgpack", "os", "re", "secrets", "string", "struct", "types", "typing", "typing_extensions", "unicodedata",
    "uuid",
}  # fmt: skip
COMMAND_LINE = {"cli", "commands", "demo", "__main__"}
BELOW = {
    "db": {"errors"},
    "kms": {"db"} | PURE,
    "keyring": {"kms", "db"} | PURE,
}


def modules() -> dict[str, Path]:
    """Every module of the library by its dotted name."""
    found = {}
    for folder, package in ((ROOT / "shredsaver", "shredsaver"), (ROOT / "kms", "shredsaver.kms")):
        for path in folder.rglob("*.py"):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def imports(nodes: Iterator[ast.AST] | list[ast.stmt]) -> Iterator[str]:
    """What some nodes import, as dotted names; a name imported from a package is given if it is a module of ours."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def layer(module: str) -> str:
    """The first name below the package: ``shredsaver.db.sqlite`` is in ``db``."""
    return module.split(".")[1] if "." in module else "__init__"


def ours(names: Iterator[str]) -> set[str]:
    return {name for name in names if name.split(".")[0] == "shredsaver"}


def of(*layers: str) -> list[str]:
    return sorted(name for name in MODULES if layer(name) in layers)


def test_the_source_is_found() -> None:
    assert {"shredsaver", "shredsaver.keytree", "shredsaver.db.sqlite", "shredsaver.kms.base"} <= set(MODULES)
    assert {layer(name) for name in MODULES} >= PURE


@pytest.mark.parametrize("module", of(*BELOW))
def test_layers_import_only_what_is_below_them(module: str) -> None:
    above = {layer(name) for name in ours(imports(ast.walk(TREES[module])))} - BELOW[layer(module)] - {layer(module)}
    assert not above


@pytest.mark.parametrize("module", [name for name in MODULES if layer(name) not in COMMAND_LINE])
def test_the_library_does_not_need_its_command_line(module: str) -> None:
    assert not COMMAND_LINE & {layer(name) for name in ours(imports(ast.walk(TREES[module])))}


@pytest.mark.parametrize("module", of(*PURE))
def test_pure_modules_import_nothing_that_does_io(module: str) -> None:
    names = set(imports(ast.walk(TREES[module])))
    effects = {"shredsaver.db.base"} if layer(module) == "erasure" else set()
    assert {layer(name) for name in ours(iter(names)) - effects} <= PURE
    assert {name.split(".")[0] for name in names} - {"shredsaver"} <= PURE_MAY_IMPORT


@pytest.mark.parametrize("module", of(*PURE))
def test_pure_modules_open_nothing(module: str) -> None:
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            assert node.attr == "urandom"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print", "input", "exec", "eval", "__import__"}


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"shredsaver.sealing"}))
def test_only_sealing_touches_a_cipher(module: str) -> None:
    ciphers = "cryptography.hazmat.primitives.ciphers"
    names = list(imports(ast.walk(TREES[module])))
    assert not [name for name in names if name.startswith((ciphers, "cryptography.fernet"))]
    attributes = {node.attr for node in ast.walk(TREES[module]) if isinstance(node, ast.Attribute)}
    assert not attributes & {"AESGCM", "ChaCha20Poly1305", "AESGCMSIV", "AESSIV", "AESCCM", "AESOCB3"}


def test_importing_runs_in_no_circle() -> None:
    # Raises CycleError, which names the circle.
    graph = {name: ours(imports(tree.body)) & set(MODULES) - {name} for name, tree in TREES.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)
