"""The file of roots: blocks, permissions, the passphrase, key URIs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shredsaver.errors import (
    ConfigurationError,
    FormatError,
    KeyAccessDeniedError,
    KeyNotFoundError,
    KeyServiceError,
    KeyServiceUnavailableError,
    MissingDependencyError,
    UnknownKeySchemeError,
    UnsealError,
)
from shredsaver.kms import LocalKeyService, base, open_key_service, passphrase, register_key_service
from shredsaver.kms.locking import locked
from shredsaver.kms.passphrase import Parameters, protect, unlock
from shredsaver.kms.roots import Anchor
from shredsaver.kms.rootsfile import BLOCK, Root, RootsFile, seal_root, unseal_root

DEPLOYMENT = bytes(range(16))
CUSTOMER = b"c" * 16


@pytest.fixture
def file(tmp_path: Path) -> RootsFile:
    RootsFile.create(tmp_path / "roots", 4, DEPLOYMENT, Parameters())
    return RootsFile(tmp_path / "roots")


def root(slot: int, epoch: int) -> Root:
    return Root(slot, epoch, Anchor(epoch * 10, bytes([slot]) * 32), bytes([slot, epoch]) * 16)


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_roots_are_read_as_they_were_written(file: RootsFile) -> None:
    written = [root(0, 1), root(0, 2), root(3, 7), root(4, 1)]
    file.write(written)
    assert [file.read(each.slot, each.epoch) for each in written] == written
    assert list(file.scan()) == [root(0, 2), root(0, 1), root(3, 7), root(4, 1)]
    assert file.newest(0) == root(0, 2)
    assert file.newest(1) is None
    assert file.read(0, 3) is None
    assert os.path.getsize(file.path) == BLOCK * 11


def test_a_zeroed_root_is_gone(file: RootsFile) -> None:
    file.write([root(2, 1), root(2, 2)])
    file.erase([(2, 1)])
    assert file.read(2, 1) is None
    assert file.read(2, 2) == root(2, 2)
    assert root(2, 1).key not in file.path.read_bytes()
    file.erase([(2, 1)])
    file.write([root(2, 3)])
    file.erase([(2, 1)])  # its half was reused: nothing to do
    assert file.newest(2) == root(2, 3)


def test_a_half_in_use_is_not_overwritten(file: RootsFile) -> None:
    file.write([root(1, 1)])
    with pytest.raises(KeyServiceError, match="must be seen off"):
        file.write([root(1, 3)])
    assert file.read(1, 1) == root(1, 1)
    with pytest.raises(KeyServiceError, match="4 slots"):
        file.read(5, 1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, BLOCK - 1), st.integers(1, 255))
def test_any_changed_byte_makes_a_block_torn(tmp_path_factory: pytest.TempPathFactory, place: int, flip: int) -> None:
    path = tmp_path_factory.mktemp("torn") / "roots"
    RootsFile.create(path, 1, DEPLOYMENT, Parameters())
    file = RootsFile(path)
    file.write([root(0, 1)])
    at = file._place(0, 1) + place
    (byte,) = os.pread(file._file, 1, at)
    os.pwrite(file._file, bytes([byte ^ flip]), at)
    assert file.read(0, 1) is None
    assert file.newest(0) is None
    file.close()


def test_a_root_of_another_deployment_is_refused(file: RootsFile, tmp_path: Path) -> None:
    RootsFile.create(tmp_path / "other", 4, bytes(16), Parameters())
    other = RootsFile(tmp_path / "other")
    other.write([root(0, 1)])
    os.pwrite(file._file, os.pread(other._file, BLOCK, other._place(0, 1)), file._place(0, 1))
    with pytest.raises(ConfigurationError, match="another deployment"):
        file.read(0, 1)


@pytest.mark.parametrize(
    "content", [b"", b"x", bytes(BLOCK), b"SQLite format 3\0".ljust(BLOCK, b"\0"), os.urandom(2 * BLOCK)]
)
def test_what_is_no_file_of_roots_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "roots").write_bytes(content)
    with pytest.raises(FormatError):
        RootsFile(tmp_path / "roots")


# -- passphrase --------------------------------------------------------------------------------------------------------


def test_a_sealed_root_opens_only_in_its_place() -> None:
    sealed = seal_root(b"k" * 32, DEPLOYMENT, 3, 5, b"r" * 32)
    there = Root(3, 5, Anchor(0, bytes(32)), sealed)
    assert unseal_root(b"k" * 32, DEPLOYMENT, there) == b"r" * 32
    wrong = [
        (b"x" * 32, DEPLOYMENT, there),
        (b"k" * 32, bytes(16), there),
        (b"k" * 32, DEPLOYMENT, there._replace(slot=4)),
        (b"k" * 32, DEPLOYMENT, there._replace(epoch=7)),
        (b"k" * 32, DEPLOYMENT, there._replace(key=b"r" * 32)),
    ]
    for arguments in wrong:
        with pytest.raises(UnsealError):
            unseal_root(*arguments)


@pytest.mark.parametrize("kdf", ["argon2id", "pbkdf2"])
def test_a_passphrase_opens_what_it_closed(kdf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(passphrase._COSTS, "pbkdf2", (1000, 0, 0))
    parameters, key = protect("correct horse", kdf)
    assert Parameters.unpack(parameters.pack()) == parameters
    assert unlock("correct horse", parameters) == key
    assert len(key) == 32
    assert key not in parameters.pack()
    with pytest.raises(KeyAccessDeniedError, match="wrong"):
        unlock("correct horse ", parameters)
    with pytest.raises(KeyAccessDeniedError, match="needs a passphrase"):
        unlock(None, parameters)
    assert protect("correct horse", kdf)[1] != key


def test_passphrases_that_cannot_be() -> None:
    with pytest.raises(ConfigurationError, match="8 characters"):
        protect("short", "argon2id")
    with pytest.raises(ConfigurationError, match="must be one of"):
        protect("long enough", "md5")
    with pytest.raises(ConfigurationError, match="without one"):
        unlock("given", Parameters())
    with pytest.raises(FormatError, match="absurd"):
        Parameters.unpack(Parameters(passphrase.ARGON2ID, 3, 2**31, 4).pack())
    with pytest.raises(FormatError, match="does not know"):
        Parameters.unpack(Parameters(9).pack())


def test_keys_under_a_passphrase(tmp_path: Path) -> None:
    place = tmp_path / "keys"
    with LocalKeyService(place, passphrase="correct horse", slots=2) as service:
        service.create(CUSTOMER, b"secret")
        service.destroy([b"other"])
    for wrong, error in ((None, KeyAccessDeniedError), ("wrong horse!", KeyAccessDeniedError)):
        with pytest.raises(error):
            LocalKeyService(place, passphrase=wrong)
    with LocalKeyService(place, passphrase="correct horse") as service:
        assert service.load(CUSTOMER, 1).secret == b"secret"
        root = service._roots.open(service._look(CUSTOMER).root)
        assert len(root) == 32
        assert root not in (place / "roots").read_bytes()


# -- permissions and places --------------------------------------------------------------------------------------------


def test_everything_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with LocalKeyService(tmp_path / "keys") as service:
            service.create(CUSTOMER, b"secret")
            found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "keys").iterdir()}
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    assert {"keys.db", "roots", "lock"} <= set(found)
    assert set(found.values()) == {0o600}


@pytest.mark.parametrize(("name", "mode"), [(".", 0o750), (".", 0o701), ("keys.db", 0o640), ("roots", 0o604)])
def test_what_others_can_reach_is_refused(tmp_path: Path, name: str, mode: int) -> None:
    LocalKeyService(tmp_path / "keys").close()
    (tmp_path / "keys" / name).chmod(mode)
    with pytest.raises(ConfigurationError, match="chmod"):
        LocalKeyService(tmp_path / "keys")


def test_a_missing_store_is_made_only_if_nobody_depends_on_it(tmp_path: Path) -> None:
    with pytest.raises(KeyNotFoundError, match="no key directory"):
        open_key_service(f"file:{tmp_path / 'keys'}", create=False)
    assert not (tmp_path / "keys").exists()
    (tmp_path / "keys").mkdir(mode=0o700)
    with pytest.raises(KeyNotFoundError, match="no key store"):
        open_key_service(f"file:{tmp_path / 'keys'}", create=False)
    with pytest.raises(ConfigurationError, match="cannot be made"):
        open_key_service(f"file:{tmp_path / 'no' / 'such'}")
    (tmp_path / "text").write_text("x")
    with pytest.raises(ConfigurationError, match="no directory"):
        open_key_service(f"file:{tmp_path / 'text'}")


def test_roots_may_be_elsewhere(tmp_path: Path) -> None:
    uri = f"file:{tmp_path / 'keys'}?roots={tmp_path / 'elsewhere'}&slots=2"
    with open_key_service(uri) as service:
        service.create(CUSTOMER, b"secret")
    assert not (tmp_path / "keys" / "roots").exists()
    with open_key_service(uri, create=False) as service:
        assert service.load(CUSTOMER, 1).secret == b"secret"
    with pytest.raises(KeyNotFoundError, match="missing"):
        open_key_service(f"file:{tmp_path / 'keys'}")


def test_a_roots_file_replaced_while_open_is_noticed(tmp_path: Path) -> None:
    with LocalKeyService(tmp_path / "keys", slots=1) as service:
        service.create(CUSTOMER, b"secret")
        content = (tmp_path / "keys" / "roots").read_bytes()
        (tmp_path / "keys" / "new").write_bytes(content)
        (tmp_path / "keys" / "new").rename(tmp_path / "keys" / "roots")
        with pytest.raises(KeyServiceError, match="replaced while it was open"):
            service.destroy([CUSTOMER])


def test_a_lock_is_waited_for_and_then_reported(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "lock"),
        pytest.raises(KeyServiceUnavailableError) as caught,
        locked(tmp_path / "lock", 0.05),
    ):
        pass
    assert caught.value.retryable
    with locked(tmp_path / "lock", 0.05):
        assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600


# -- key URIs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["file:{0}", "file://{0}", "file://localhost{0}", "FILE:{0}"])
def test_forms_of_a_file_uri(tmp_path: Path, form: str) -> None:
    with open_key_service(form.format(tmp_path / "a directory")) as service:
        assert isinstance(service, LocalKeyService)
        assert service.directory == tmp_path / "a directory"
    with open_key_service(form.format(str(tmp_path / "a%20directory")), create=False) as service:
        assert open_key_service(service) is service


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("file:", "no directory"),
        ("file://host.example/keys", "of this host"),
        ("file:keys?color=red", "no option 'color'"),
        ("file:keys?passphrase-env=SHREDSAVER_NOT_SET", "no variable SHREDSAVER_NOT_SET"),
        ("file:keys?slots=many", "no number"),
        ("file:keys?slots=0", "1 to 65536"),
        ("file:keys?slots=65537", "1 to 65536"),
        ("file:keys?mirror=keys", "named twice"),
    ],
)
def test_uris_that_cannot_be(uri: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=said):
        open_key_service(uri)
    assert list(tmp_path.iterdir()) == []


def test_a_passphrase_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS_PASSPHRASE", "correct horse")
    monkeypatch.setitem(passphrase._COSTS, "pbkdf2", (1000, 0, 0))
    uri = f"file:{tmp_path / 'keys'}?passphrase-env=KEYS_PASSPHRASE&kdf=pbkdf2&mirror={tmp_path / 'mirror'}"
    with open_key_service(uri) as service:
        service.create(CUSTOMER, b"secret")
    with open_key_service(uri) as service:
        assert service.load(CUSTOMER, 1).secret == b"secret"
    monkeypatch.setenv("KEYS_PASSPHRASE", "another horse")
    with pytest.raises(KeyAccessDeniedError):
        open_key_service(uri)


@pytest.mark.parametrize("uri", ["vault:somewhere", "atlas.keys", "", "C:\\keys"])
def test_an_unknown_scheme_lists_the_known(uri: str) -> None:
    with pytest.raises(UnknownKeySchemeError, match=r"awskms:, file:"):
        open_key_service(uri)


def test_a_scheme_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_factories", {})
    asked = []

    def factory(uri: str, *, create: bool) -> LocalKeyService:
        asked.append((uri, create))
        return LocalKeyService(tmp_path / "keys")

    register_key_service("My-Vault", factory)
    with open_key_service("my-vault:x?y=z", create=False) as service:
        assert isinstance(service, LocalKeyService)
    assert asked == [("my-vault:x?y=z", False)]
    with pytest.raises(UnknownKeySchemeError, match="my-vault:"):
        open_key_service("other:x")
    for bad in ("", "1st", "my vault", "ä", "a:b"):
        with pytest.raises(ConfigurationError):
            register_key_service(bad, factory)


def test_a_missing_dependency_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(base, "import_module", missing)
    with pytest.raises(MissingDependencyError, match=r"pip install 'shredsaver\[aws\]'"):
        open_key_service("awskms:?region=eu-central-1")
