"""The file of a ledger: how it is made, and what is refused that is damaged, cut short or none."""

import contextlib
import os
import re
import sqlite3
import stat
from pathlib import Path

import pytest

from skdpmf import PrivacyBudget, PrivacyLedger
from skdpmf.books import ledger_file
from skdpmf.books.ledger_rules import limit_of
from skdpmf.exceptions import LedgerError, PrivacyParameterError
from tests.books.ledgers import gaussian_plan, mixed_plan, new_ledger, pure_plan
from tests.books.test_ledger_processes import costs
from tests.systems import needs_posix

CHANGED = "its terms or its total were changed"


@pytest.mark.parametrize("path", [None, 7, b"x", "", "a\0b", True])
def test_what_is_no_path(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    match = re.escape(f"path={path!r} must be a str or path-like that names a file")
    with pytest.raises(PrivacyParameterError, match=match):
        PrivacyLedger(path, PrivacyBudget(1.0))
    assert list(tmp_path.iterdir()) == []


@needs_posix
def test_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("~/x", Path("~/x")):
        assert PrivacyLedger(path, PrivacyBudget(1.0)).path == str((tmp_path / "x").resolve())
    with pytest.raises(LedgerError, match="it is a folder, a pipe or a device"):
        PrivacyLedger("~", PrivacyBudget(1.0))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LedgerError, match="it is a folder, a pipe or a device"):
        PrivacyLedger("~/pipe", PrivacyBudget(1.0))


@needs_posix
def test_a_new_file_is_its_owners_alone(tmp_path):
    ledger = new_ledger(tmp_path)
    ledger.reserve(gaussian_plan(0.1))
    modes = {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == {0o600}
    os.chmod(ledger.path, 0o640)
    new_ledger(tmp_path).reserve(gaussian_plan(0.1))
    assert stat.S_IMODE(os.stat(ledger.path).st_mode) == 0o640


@pytest.mark.parametrize("step", ["link", "close"])
def test_a_file_is_made_whole_or_not_at_all(tmp_path, monkeypatch, step):
    class Killed(BaseException):
        pass

    def killed(*_):
        assert not (tmp_path / "ratings.ledger").exists()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, step, killed)
        with pytest.raises(Killed):
            new_ledger(tmp_path)
    assert not (tmp_path / "ratings.ledger").exists()
    assert new_ledger(tmp_path).verify() == 0
    assert [file.name for file in tmp_path.iterdir()] == ["ratings.ledger"]


def test_the_journal_of_a_ledger_that_is_gone(tmp_path):
    """SQLite would play it into the new file."""
    (tmp_path / "ratings.ledger-journal").write_bytes(b"pages")
    with pytest.raises(LedgerError, match=r"journal of one that was moved.*ledger-journal"):
        new_ledger(tmp_path)
    assert not (tmp_path / "ratings.ledger").exists()


def test_a_file_cut_short_is_refused(tmp_path):
    """Also to nothing: a new ledger in its place would grant the whole limit once more."""
    ledger = new_ledger(tmp_path)
    ledger.reserve(gaussian_plan(0.1))
    path, content = Path(ledger.path), Path(ledger.path).read_bytes()
    lengths = [0, 1, 2, 15, 16, 99, 100, 511, 512, 513, *range(1024, len(content), 1024)]
    for n in [*lengths, len(content) - 1]:
        path.write_bytes(content[:n])
        for use in (
            lambda: PrivacyLedger(path),
            lambda: new_ledger(tmp_path),
            lambda: ledger.reserve(gaussian_plan(0.1)),
        ):
            with pytest.raises(LedgerError) as caught:
                use()
            assert repr(str(path)) in str(caught.value)
        assert path.read_bytes() == content[:n]
    path.write_bytes(b"")
    with pytest.raises(LedgerError, match=r"it is empty \(delete it only if nothing was ever"):
        new_ledger(tmp_path)
    path.write_bytes(content)
    assert new_ledger(tmp_path).verify() == 1


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text").write_text("epsilon: 4\n" * 200)
    with pytest.raises(LedgerError, match="it is no ledger: choose a path of its own"):
        PrivacyLedger(tmp_path / "text", PrivacyBudget(1.0))
    with sqlite3.connect(tmp_path / "other") as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    with pytest.raises(LedgerError, match="holds another SQLite database"):
        PrivacyLedger(tmp_path / "other", PrivacyBudget(1.0))
    with pytest.raises(LedgerError, match="choose a folder that exists and may be written"):
        PrivacyLedger(tmp_path / "no" / "folder", PrivacyBudget(1.0))
    ledger = new_ledger(tmp_path)
    for version in (0, 1, 4):
        change(ledger, f"PRAGMA user_version={version}")
        with pytest.raises(LedgerError, match=f"has the ledger format {version}, and this"):
            PrivacyLedger(ledger.path)


def change(ledger, *statements):
    """Change the file by hand."""
    connection = sqlite3.connect(ledger.path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_the_file_itself_keeps_entries(tmp_path):
    ledger = new_ledger(tmp_path)
    with ledger.reserve(gaussian_plan(0.1)):
        pass
    for statement, message in (
        ("DELETE FROM entry", "never deleted"),
        ("UPDATE entry SET main='0'", "never changed"),
        ("UPDATE entry SET record='{}'", "never changed"),
        ("UPDATE entry SET status='reserved'", "set once"),
        ("UPDATE entry SET status='refunded'", "set once|CHECK"),
    ):
        with pytest.raises(sqlite3.IntegrityError, match=message):
            change(ledger, statement)


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (["DROP TRIGGER kept", "DELETE FROM entry WHERE id=3"], "total is not the sum"),
        (["DROP TRIGGER kept", "DELETE FROM entry WHERE id=2"], "entry 2 is missing"),
        (["DROP TRIGGER fixed", "UPDATE entry SET main='0' WHERE id=1"], "entry 1 is charged less"),
        (
            ["DROP TRIGGER fixed", "UPDATE entry SET record=replace(record, '10.0', '9.0')"],
            "entry 1 is charged less",
        ),
        (["UPDATE total SET main='0'"], CHANGED),
        (["UPDATE total SET entries=7"], CHANGED),
        (["UPDATE ledger SET value='0' WHERE name='main'"], CHANGED),
        (["DELETE FROM total"], CHANGED),
        (["INSERT INTO total SELECT * FROM total"], CHANGED),
        (["UPDATE total SET digest=NULL"], CHANGED),
    ],
)
def test_verify_finds_what_was_changed(tmp_path, statements, message):
    ledger = new_ledger(tmp_path)
    for plan in (gaussian_plan(0.1), mixed_plan(0.1, 0.1), pure_plan(0.2)):
        ledger.reserve(plan)
    assert ledger.verify() == 3
    change(ledger, *statements)
    match = f"must be the ledger as it was written.*{message}"
    with pytest.raises(LedgerError, match=match):
        PrivacyLedger(ledger.path).verify()
    if message == CHANGED or "id=3" in statements[-1]:  # which a charge looks at
        with pytest.raises(LedgerError, match=match):
            ledger.reserve(gaussian_plan(0.1))


@pytest.mark.parametrize(
    ("statement", "total", "message"),
    [
        ("SELECT 1", (1, 0, 0), "the total is not the sum"),
        ("UPDATE ledger SET value='0' WHERE name='main'", None, "more is spent than the limit"),
    ],
)
def test_verify_adds_up_where_the_digest_is_right(tmp_path, statement, total, message):
    ledger = new_ledger(tmp_path)
    ledger.reserve(gaussian_plan(0.1))
    connection = sqlite3.connect(ledger.path, isolation_level=None)
    connection.execute(statement)
    query = "SELECT entries, main, second FROM total"
    ledger_file.write_total(connection, *(total or connection.execute(query).fetchone()))
    connection.close()
    with pytest.raises(LedgerError, match=message):
        PrivacyLedger(ledger.path).verify()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET record='{}'",
        "UPDATE entry SET record='{'",
        "UPDATE entry SET record=replace(record, 'releases', 'realeses')",
        "UPDATE entry SET record=replace(record, '\"gaussian\"', '\"pure\"')",
        "UPDATE entry SET record=replace(record, '10.0', '\"x\"')",
        "UPDATE entry SET record=x'ff00'",
        "UPDATE entry SET main='x'",
        "UPDATE entry SET status=x'64'",
        "UPDATE entry SET time='noon'",
        "DROP TABLE total",
        "DROP TABLE ledger",
        "DELETE FROM ledger",
        "UPDATE ledger SET value='x' WHERE name='epsilon'",
        "UPDATE ledger SET value='-1' WHERE name='epsilon'",
        "UPDATE ledger SET value='rule' WHERE name='rule'",
        "UPDATE ledger SET value=x'ff' WHERE name='main'",
        "UPDATE total SET main='x'",
        "UPDATE total SET entries='one'",
    ],
)
def test_damage_is_a_ledger_error_and_no_other(tmp_path, statement):
    ledger = new_ledger(tmp_path)
    ledger.reserve(gaussian_plan(0.1))
    open_up = ["DROP TRIGGER fixed", "PRAGMA ignore_check_constraints=1"]
    change(ledger, *open_up, statement)
    with pytest.raises(LedgerError, match=re.escape(ledger.path)):
        PrivacyLedger(ledger.path).verify()
    uses = [
        lambda: str(ledger.report()) + ledger.report().to_json(),
        lambda: ledger.reserve(gaussian_plan(0.1)),
    ]
    for use in uses:
        with contextlib.suppress(LedgerError):
            use()


def row_bytes(content, text, before, after):
    """Places around a text of the file, and the head of its page: what finds the row."""
    at = content.index(text)
    page = at // 4096 * 4096
    return {*range(page, page + 16), *range(at - before, at + after)}


def test_single_bit_flips_let_no_charge_through(tmp_path):
    """In the row of the total, in the terms, in the file's header: right, or a LedgerError."""
    ledger = new_ledger(tmp_path)
    ledger.reserve(gaussian_plan(0.7))
    spent = ledger.report().amount
    path, content = Path(ledger.path), Path(ledger.path).read_bytes()
    row = row_bytes(content, b"%d" % spent.main, 24, len(str(spent.main)) + 72)
    terms = row_bytes(content, b"main%d" % ledger.report().allowed.main, 8, 64)
    refused = 0
    for at in sorted({*row, *terms, *range(16, 100)}):
        for bit in (at % 8, (at + 3) % 8) if at in row else (at % 8,):
            changed = bytearray(content)
            changed[at] ^= 1 << bit
            path.write_bytes(changed)
            try:
                PrivacyLedger(path).reserve(gaussian_plan(0.5))
                left = PrivacyLedger(path).report()
            except LedgerError:
                refused += 1
                continue
            assert left.amount == spent + costs(ledger.rule, [gaussian_plan(0.5)]), (at, bit)
            assert left.allowed == limit_of(ledger.rule, 4.0, 1e-5), (at, bit)
    assert refused > 2 * len(str(spent.main))
