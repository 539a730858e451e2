"""Little training scripts' side effects: every rank gets a lone process's answers, and main's files are its files."""

from __future__ import annotations

import csv
import glob
import json
import os
import pickle
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from replica_harness import Step, alone, orders, play, race

from samestep.replica import files


def nothing() -> None:
    """An empty directory to start in."""


def some_data() -> None:
    """A directory with data and the results of an earlier run."""
    os.makedirs("data/images")
    for index in range(5):
        Path(f"data/images/{index}.txt").write_text(f"image {index}")
    os.makedirs("out/old")
    Path("out/log.txt").write_text("earlier\n")
    Path("out/old/best.txt").write_text("best of the earlier run")
    os.symlink("old/best.txt", "out/latest")


def text_of(path: str) -> str:
    with open(path) as file:
        return file.read()


def write(path: str, text: str, mode: str = "w") -> int:
    with open(path, mode) as file:
        return file.write(text)


def make_if_missing(path: str) -> bool:
    if os.path.exists(path):
        return False
    os.mkdir(path)
    return True


def save(step: int) -> None:
    torch.save({"step": step, "weight": torch.full((3,), float(step))}, f"checkpoints/{step}.pt")


def load_latest() -> Any:
    latest = sorted(os.listdir("checkpoints"))[-1]
    return torch.load(f"checkpoints/{latest}")["weight"].tolist()


def checkpoints() -> list[Step]:
    return [
        lambda: os.makedirs("checkpoints"),
        lambda: os.makedirs("checkpoints"),
        lambda: save(1),
        lambda: os.listdir("checkpoints"),
        lambda: save(2),
        load_latest,
        lambda: os.replace("checkpoints/1.pt", "checkpoints/9.pt"),
        load_latest,
        lambda: os.remove("checkpoints/9.pt"),
        lambda: sorted(os.listdir("checkpoints")),
        lambda: torch.load("checkpoints/2.pt", mmap=True)["step"],
        lambda: torch.load("checkpoints/9.pt"),
        lambda: os.path.getsize("checkpoints/2.pt") > 100,
    ]


def directories() -> list[Step]:
    return [
        lambda: make_if_missing("runs"),
        lambda: make_if_missing("runs/1"),
        lambda: make_if_missing("runs"),
        lambda: len(os.listdir("runs")),
        lambda: os.makedirs(f"runs/{len(os.listdir('runs')) + 1}"),
        lambda: sorted(glob.glob("runs/*")),
        lambda: shutil.rmtree("runs"),
        lambda: os.path.isdir("runs"),
        lambda: os.makedirs("runs/x/y/z"),
        lambda: [(base, sorted(names)) for base, names, _ in os.walk("runs")],
        lambda: os.removedirs("runs/x/y/z"),
        lambda: os.path.exists("runs"),
    ]


def logs() -> list[Step]:
    return [
        lambda: write("out/log.txt", "one\n", "a"),
        lambda: text_of("out/log.txt"),
        lambda: write("out/log.txt", "two\n", "a"),
        lambda: text_of("out/log.txt"),
        lambda: os.path.getsize("out/log.txt"),
        lambda: text_of("out/latest"),
        lambda: write("out/latest", "better"),
        lambda: text_of("out/old/best.txt"),
        lambda: os.unlink("out/latest"),
        lambda: os.path.lexists("out/latest"),
        lambda: shutil.rmtree("out"),
        lambda: os.makedirs("out"),
        lambda: os.listdir("out"),
        lambda: write("out/log.txt", "new\n"),
        lambda: text_of("out/log.txt"),
    ]


def array_in_place() -> Any:
    array = np.memmap("map.bin", dtype=np.float32, mode="w+", shape=(4,))
    array[:] = 3
    array.flush()
    return np.memmap("map.bin", dtype=np.float32, mode="r").tolist()


def csv_rows() -> list[list[str]]:
    with open("metrics.csv", "a", newline="") as file:
        csv.writer(file).writerow(["epoch", 1, 0.5])
    with open("metrics.csv", newline="") as file:
        return list(csv.reader(file))


def formats() -> list[Step]:
    def dump_json() -> None:
        with open("config.json", "w") as file:
            json.dump({"a": [1, 2]}, file)

    def dump_pickle() -> Any:
        with open("state.pkl", "wb") as file:
            pickle.dump({"b": 3}, file)
        with open("state.pkl", "rb") as file:
            return pickle.load(file)

    return [
        lambda: np.save("a.npy", np.arange(4)),
        lambda: np.load("a.npy").tolist(),
        lambda: np.savez("b.npz", x=np.ones(2)),
        lambda: np.load("b.npz")["x"].tolist(),
        lambda: np.savetxt("c.txt", np.eye(2)),
        lambda: np.loadtxt("c.txt").tolist(),
        array_in_place,
        csv_rows,
        csv_rows,
        dump_json,
        lambda: json.loads(text_of("config.json")),
        dump_pickle,
        lambda: torch.save(torch.ones(2), Path("t.pt")),
        lambda: torch.load(Path("t.pt")).tolist(),
    ]


def paths() -> list[Step]:
    root = Path("out")
    return [
        lambda: root.exists(),
        lambda: sorted(str(each) for each in root.iterdir()),
        lambda: sorted(str(each) for each in root.rglob("*")),
        lambda: sorted(str(each) for each in root.glob("*/*.txt")),
        lambda: (root / "new" / "deep").mkdir(parents=True),
        lambda: (root / "new").mkdir(exist_ok=True),
        lambda: (root / "new").mkdir(),
        lambda: (root / "new" / "t").write_text("text"),
        lambda: (root / "new" / "t").read_text(),
        lambda: (root / "new" / "b").write_bytes(b"\0\1"),
        lambda: (root / "new" / "b").read_bytes(),
        lambda: (root / "new" / "touched").touch(),
        lambda: (root / "new" / "touched").touch(exist_ok=False),
        lambda: (root / "old" / "best.txt").touch(),
        lambda: (root / "new" / "t").stat().st_size,
        lambda: (root / "new" / "t").chmod(0o600),
        lambda: (root / "new" / "t").stat().st_mode,
        lambda: (root / "new" / "link").symlink_to("t"),
        lambda: (root / "new" / "link").is_symlink(),
        lambda: (root / "new" / "link").read_text(),
        lambda: str((root / "new" / "link").resolve().relative_to(Path.cwd())),
        lambda: str((root / "latest").resolve().relative_to(Path.cwd())),
        lambda: (root / "new" / "t").samefile(root / "new" / "link"),
        lambda: str((root / "new" / "t").rename(root / "moved")),
        lambda: (root / "new" / "link").exists(),
        lambda: (root / "moved").is_file(),
        lambda: str((root / "moved").replace(root / "log.txt")),
        lambda: (root / "log.txt").read_text(),
        lambda: (root / "log.txt").unlink(),
        lambda: (root / "log.txt").unlink(missing_ok=True),
        lambda: (root / "log.txt").unlink(),
        lambda: (root / "new" / "deep").rmdir(),
        lambda: (root / "new").rmdir(),
        lambda: (root / "old").rename(root / "older"),
        lambda: (root / "older" / "best.txt").read_text(),
        lambda: (root / "old").exists(),
        lambda: sorted(str(each) for each in Path().rglob("*")),
        lambda: (root / "hard").hardlink_to(root / "older" / "best.txt"),
        lambda: (root / "hard").read_text(),
        lambda: (root / "older").is_dir(),
        lambda: str(Path("~").expanduser() == Path.home()),
    ]


def tools() -> list[Step]:
    def zipped() -> list[str]:
        shutil.make_archive("packed", "zip", "data")
        shutil.unpack_archive("packed.zip", "unpacked")
        os.remove("packed.zip")  # it holds the time
        return sorted(os.listdir("unpacked/images"))

    def listed(path: str) -> list[tuple[str, bool, bool, bool]]:
        with os.scandir(path) as entries:
            return sorted((each.name, each.is_file(), each.is_dir(), each.is_symlink()) for each in entries)

    return [
        lambda: shutil.copy("data/images/0.txt", "copied.txt"),
        lambda: shutil.copy2("data/images/1.txt", "out"),
        lambda: text_of("out/1.txt"),
        lambda: shutil.move("data/images/2.txt", "out/moved.txt"),
        lambda: sorted(os.listdir("data/images")),
        lambda: shutil.copytree("data", "copy"),
        lambda: shutil.copytree("data", "copy"),
        lambda: shutil.copytree("data", "copy", dirs_exist_ok=True),
        lambda: listed("copy/images"),
        lambda: listed("out"),
        lambda: shutil.rmtree("data/images"),
        lambda: os.listdir("data"),
        lambda: shutil.move("copy", "data/images"),
        lambda: sorted(glob.glob("data/**", recursive=True)),
        lambda: os.chdir("data/images"),
        lambda: os.path.relpath(os.getcwd(), os.path.join(os.getcwd(), "..", "..")),
        lambda: write("here.txt", "here"),
        lambda: sorted(os.listdir()),
        lambda: os.path.basename(os.path.abspath("here.txt")),
        lambda: text_of("../../data/images/here.txt"),
        lambda: os.chdir("../.."),
        lambda: text_of("data/images/here.txt"),
        lambda: os.path.isfile("missing"),
        lambda: text_of("missing"),
        lambda: os.path.samefile("data/images/here.txt", "./data/images/../images/here.txt"),
        zipped,
        lambda: shutil.disk_usage(".").total > 0,
        lambda: os.access("data", os.W_OK),
    ]


def database() -> list[Step]:
    def insert() -> None:
        connection = sqlite3.connect("runs.db")
        connection.execute("create table if not exists runs (name text)")
        connection.execute("insert into runs values ('a')")
        connection.commit()
        connection.close()

    def count() -> int:
        connection = sqlite3.connect("runs.db")
        found = connection.execute("select count(*) from runs").fetchone()[0]
        connection.close()
        return int(found)

    return [insert, insert, count, lambda: os.path.exists("runs.db"), lambda: sqlite3.connect("no/such.db")]


def temporary() -> list[Step]:
    def in_temporary_directory() -> str:
        with tempfile.TemporaryDirectory() as directory:
            write(os.path.join(directory, "f"), "temporary")
            shutil.move(os.path.join(directory, "f"), "kept.txt")
        return f"{os.path.exists(directory)} {text_of('kept.txt')}"

    def atomically() -> str:
        with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
            file.write("atomic")
        os.replace(file.name, "atomic.txt")
        return text_of("atomic.txt")

    def unnamed() -> str:
        with tempfile.TemporaryFile("w+") as file:
            file.write("unnamed")
            file.seek(0)
            return file.read()

    return [in_temporary_directory, atomically, unnamed, lambda: sorted(os.listdir(".")), tempfile.gettempdir]


SCRIPTS: dict[str, tuple[Callable[[], list[Step]], Callable[[], None]]] = {
    "checkpoints": (checkpoints, nothing),
    "directories": (directories, nothing),
    "logs": (logs, some_data),
    "formats": (formats, nothing),
    "paths": (paths, some_data),
    "tools": (tools, some_data),
    "database": (database, nothing),
    "temporary": (temporary, nothing),
}


def comparable(answers: list[Any]) -> list[Any]:
    """Answers without what tracebacks say about places."""
    return [
        (each[0],) if isinstance(each, tuple) and len(each) == 2 and isinstance(each[1], str) else each
        for each in answers
    ]


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("order", ["main first", "main last", "in turn"])
def test_every_rank_answers_as_a_lone_process(name: str, order: str) -> None:
    make, setup = SCRIPTS[name]
    steps = make()
    expected, files_expected = alone(steps, setup)
    answers, files_found = play(steps, setup, orders(len(steps), 3)[order], 3)
    for rank, found in enumerate(answers):
        assert comparable(found) == comparable(expected), f"rank {rank}"
    assert files_found == files_expected


@pytest.mark.parametrize("name", ["directories", "logs", "paths", "tools"])
def test_nobody_waits_for_anybody(name: str) -> None:
    make, setup = SCRIPTS[name]
    steps = make()
    expected, files_expected = alone(steps, setup)
    for _ in range(5):
        answers, files_found = race(steps, setup, 3)
        for rank, (found,) in enumerate(answers):
            assert comparable(found) == comparable(expected), f"rank {rank}"
        assert files_found == files_expected


def test_order_of_listing_is_the_same_on_all_ranks() -> None:
    steps: list[Step] = [
        lambda: os.listdir("data/images"),
        lambda: write("data/images/zz", ""),
        lambda: write("data/images/aa", ""),
        lambda: os.listdir("data/images"),
        lambda: [each.name for each in os.scandir("data/images")],
        lambda: os.rename("data", "moved"),
        lambda: os.listdir("moved/images"),
        lambda: [str(each) for each in Path("moved").rglob("*")],
    ]
    expected, _ = alone(steps, some_data)
    for order in orders(len(steps), 2).values():
        (main, replica), _ = play(steps, some_data, order, 2)
        assert main == replica
        assert main[3] == sorted(expected[3])


def test_file_names_and_errors_are_the_script_s() -> None:
    def name_of_error(action: Callable[[], Any]) -> Any:
        try:
            action()
        except OSError as error:
            return str(error)

    def name_of_file() -> str:
        with open("out/log.txt", "a") as file:
            return str(file.name)

    steps: list[Step] = [
        name_of_file,
        lambda: name_of_error(lambda: text_of("missing/file")),
        lambda: name_of_error(lambda: os.mkdir("out")),
        lambda: name_of_error(lambda: os.rename("missing", "elsewhere")),
        lambda: name_of_error(lambda: os.listdir("missing")),
        lambda: name_of_error(lambda: os.rmdir("out")),
        lambda: name_of_error(lambda: text_of("out")),
    ]
    expected, _ = alone(steps, some_data)
    answers, _ = play(steps, some_data, orders(len(steps), 2)["in turn"], 2)
    assert answers == [expected, expected]


def test_bytes_and_descriptors() -> None:
    def through_descriptor() -> Any:
        descriptor = os.open("out", os.O_RDONLY)
        try:
            os.mkdir("made", dir_fd=descriptor)
            inner = os.open("inner.txt", os.O_WRONLY | os.O_CREAT, dir_fd=descriptor)
            os.write(inner, b"inner")
            os.close(inner)
            return os.stat("inner.txt", dir_fd=descriptor).st_size, os.fstat(descriptor).st_mode
        finally:
            os.close(descriptor)

    def through_opener() -> str:
        with open("opened.txt", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write("opened")
        return oct(os.stat("opened.txt").st_mode)

    steps: list[Step] = [
        lambda: os.mkdir(b"binary"),
        lambda: os.listdir(b"out"),
        lambda: sorted(each.path for each in os.scandir(b"out")),
        lambda: os.readlink(b"out/latest"),
        through_descriptor,
        lambda: sorted(os.listdir("out")),
        through_opener,
        lambda: os.stat(0).st_mode > 0,
        lambda: os.mkdir("a\0b"),
        lambda: os.stat(""),
        lambda: open("/dev/null", "w").close(),
        lambda: sorted(os.path.basename(each) for each in os.listdir("/proc/self/fd"))[:1],
    ]
    expected, files_expected = alone(steps, some_data)
    for order in orders(len(steps), 2).values():
        answers, found = play(steps, some_data, order, 2)
        for rank, each in enumerate(answers):
            assert sorted(map(str, comparable(each))) == sorted(map(str, comparable(expected))), f"rank {rank}"
        assert found == files_expected


def test_workers_share_the_view() -> None:
    def in_worker() -> Any:
        dataset: Any = [0, 1]
        loader: Any = torch.utils.data.DataLoader(
            dataset, num_workers=1, collate_fn=lambda rows: [text_of("out/log.txt"), os.path.exists("out/old")]
        )
        return list(loader)

    steps: list[Step] = [
        lambda: write("out/log.txt", "new", "a"),
        lambda: shutil.rmtree("out/old"),
        in_worker,
    ]
    expected, _ = alone(steps, some_data)
    answers, _ = play(steps, some_data, orders(len(steps), 2)["main last"], 2)
    assert answers == [expected, expected]


def test_everything_is_taken_back(tmp_path: Path) -> None:
    before = (open, os.open, os.stat, os.mkdir, torch.save, torch.load, sqlite3.connect, shutil.rmtree, os.listdir)
    known = set(os.supports_dir_fd)
    installs: list[Step] = [lambda: files.install_main(tmp_path), lambda: files.install_replica(tmp_path, 1)]
    for install in installs:
        install()
        install()
        assert os.mkdir is not before[3]
        files.uninstall()
        after = (open, os.open, os.stat, os.mkdir, torch.save, torch.load, sqlite3.connect, shutil.rmtree, os.listdir)
        assert after == before
        assert set(os.supports_dir_fd) == known
