"""A database whose changes are captured (row S108): random transactions on it, and whether another one is equal.

The programs are those of docs/uses/capture.md.
"""

from __future__ import annotations

import importlib
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType

CAPTURE = Path(__file__).parents[2] / "docs" / "examples" / "capture"
TOPIC = "shop-changes"
TABLES = ("account", "customer", "entry", "tag", 'strange "table')
TOTAL_CENTS = 10_000

SCHEMA = """
create table account (id integer primary key, cents integer not null);
create table customer (id integer primary key, name text, rating real, changed integer default 0);
create table entry (
    note text, day text, customer integer references customer on delete cascade, picture blob,
    primary key (customer, day)
) without rowid;
create table tag (name text primary key not null, anything);
create table "strange ""table" ("a column's" integer, "select" text, primary key ("select"));
create index by_name on customer (name);
create trigger counted after update of name on customer begin
    update customer set changed = changed + 1 where id = new.id;
end;
"""


def load(name: str) -> ModuleType:
    """A program of the example as a module; they import one another."""
    if str(CAPTURE) not in sys.path:
        sys.path.append(str(CAPTURE))
    return importlib.import_module(name)


def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A program of the example as its users run it."""
    return subprocess.Popen([sys.executable, str(CAPTURE / f"{name}.py"), *arguments], stderr=subprocess.PIPE)


class Shop:
    """The application: transactions of several rows, whatever comes to mind. Money moves, its total stays."""

    def __init__(self, path: Path, seed: int) -> None:
        self._rng = random.Random(seed)
        self._database = sqlite3.connect(path, isolation_level=None, timeout=60)
        self._database.execute("pragma journal_mode = wal")
        self._database.execute("pragma foreign_keys = on")

    def create(self) -> None:
        """The tables, and some rows that are there before anything is captured."""
        self._database.executescript(SCHEMA)
        self._database.executemany(
            "insert into account values (?, ?)", [(number, TOTAL_CENTS // 10) for number in range(10)]
        )
        self._database.execute("insert into tag values ('before', 'it began')")

    def transact(self) -> None:
        """One transaction of one to six actions; one in eight is rolled back."""
        run = self._database.execute
        run("begin immediate")
        for _ in range(self._rng.randint(1, 6)):
            self._rng.choice([self._transfer, self._customer, self._entry, self._tag, self._strange])()
        run("rollback" if self._rng.random() < 0.125 else "commit")

    def close(self) -> None:
        self._database.close()

    def _transfer(self) -> None:
        """One account less, another one more; now and then accounts get other numbers."""
        cents, (giver, taker) = self._rng.randint(1, 99), self._rng.sample(range(10), 2)
        run = self._database.execute
        if self._rng.random() < 0.1:
            run("update account set id = -1 where id = ?", (giver,))
            run("update account set id = ? where id = ?", (giver, taker))
            run("update account set id = ? where id = -1", (taker,))
        run("update account set cents = cents - ? where id = ?", (cents, giver))
        run("update account set cents = cents + ? where id = ?", (cents, taker))

    def _customer(self) -> None:
        """A customer comes, changes, gets another id, or goes and takes its entries along."""
        one, other, name = self._rng.randrange(12), self._rng.randrange(12), self._value(str)
        run = self._database.execute
        match self._rng.randrange(4):
            case 0:
                run("insert into customer (id, name, rating) values (?, ?, ?) on conflict do update "
                    "set name = excluded.name", (one, name, self._value(float)))  # fmt: skip
            case 1:
                run("update customer set name = ?, rating = ? where id <= ?", (name, self._value(float), one))
            case 2:
                run("update or ignore customer set id = ? where id = ? and not exists "
                    "(select 1 from entry where customer = ?)", (other, one, one))  # fmt: skip
            case _:
                run("delete from customer where id = ?", (one,))

    def _entry(self) -> None:
        run = self._database.execute
        customers = [each for (each,) in run("select id from customer").fetchall()]
        if not customers:
            return
        key = (self._rng.choice(customers), f"day {self._rng.randrange(5)}")
        if self._rng.random() < 0.7:
            values = (*key, self._value(str), self._value(bytes))
            run("insert or replace into entry (customer, day, note, picture) values (?, ?, ?, ?)", values)
        elif self._rng.random() < 0.5:
            run("update or replace entry set day = ? where customer = ? and day = ?", (f"day {key[0] % 5}", *key))
        else:
            run("delete from entry where customer = ? and day = ?", key)

    def _tag(self) -> None:
        run, name = self._database.execute, self._rng.choice(["a", "B", "é'\"", "漢 字", ""])
        if self._rng.random() < 0.8:
            run("replace into tag values (?, ?)", (name, self._value(None)))
        else:
            run("delete from tag where name >= ?", (name,))

    def _strange(self) -> None:
        run, word = self._database.execute, self._rng.choice("abcdef")
        if self._rng.random() < 0.7:
            run('insert or replace into "strange ""table" values (?, ?)', (self._rng.getrandbits(63), word))
        else:
            run('delete from "strange ""table"')

    def _value(self, kind: type | None) -> object:
        """Something of this kind, of any kind for None; now and then nothing."""
        rng = self._rng
        if rng.random() < 0.1:
            return None
        kind = kind or rng.choice([str, float, bytes, int])
        if kind is str:
            return rng.choice(["", "text", 'it\'s "quoted"', "zero\0inside", "湯 crème \u2028", "x" * 2_000])
        if kind is float:
            return rng.choice(
                [0.1, 1.0, -0.0, 5e-324, 1.7976931348623157e308, float("inf"), -float("inf"), rng.random()]
            )
        if kind is bytes:
            return rng.choice([b"", b"\0\xff", rng.randbytes(300)])
        return rng.choice([0, 1, -(2**63), 2**63 - 1, 2**53 + 1])


def content(path: Path) -> dict[str, list[str]]:
    """Every row of every table, types included."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        database.execute("begin")
        return {
            table: sorted(map(repr, database.execute("select * from " + load("follower").quoted(table))))
            for table in TABLES
        }


def ask(path: Path, question: str) -> int:
    """One number out of a database."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        [answer] = database.execute(question).fetchone()
    return int(answer)
