"""`samestep run SCRIPT` is `python SCRIPT` as far as the script and its caller can tell."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from harness import HANG, Workshop, environment

WHO = """\
import sys, os, json
import __main__
print(json.dumps({
    "argv": sys.argv, "file": __file__, "name": __name__, "path0": sys.path[0], "orig": sys.orig_argv,
    "globals": sorted(set(globals()) - {"json"}), "spec": __spec__ and __spec__.name, "package": __package__,
    "doc": __doc__, "same": __main__.__dict__ is globals(),
    "builtins": type(__builtins__).__name__, "loader": type(__loader__).__name__,
}, indent=1))
"""

ENDINGS = {
    "falls off the end": "print('done')",
    "exit 3": "import sys; sys.exit(3)",
    "exit 0": "import sys; sys.exit(0)",
    "exit None": "import sys; sys.exit()",
    "exit True": "import sys; sys.exit(True)",
    "exit 256": "import sys; sys.exit(257)",
    "exit -1": "import sys; sys.exit(-1)",
    "exit with text": "import sys; print('out'); sys.exit('that went wrong')",
    "exit with a tuple": "import sys; sys.exit((1, 2))",
    "os._exit": "import os; os._exit(4)",
    "quit": "quit(5)",
    "raise": "def f(x):\n    return 1 / x\n\nprint('before')\nf(0)\n",
    "syntax error": "print('never')\ndef f(:\n    pass\n",
    "indentation": "if True:\npass\n",
    "syntax error in an import": "import broken_module\n",
    "keyboard interrupt": "def f():\n    raise KeyboardInterrupt\nf()\n",
    "chained": "try:\n    {}['a']\nexcept KeyError as error:\n    raise RuntimeError('second') from error\n",
    "context": "def g():\n    {}['a']\ntry:\n    g()\nexcept KeyError:\n    raise RuntimeError('second')\n",
    "from None": "try:\n    {}['a']\nexcept KeyError:\n    raise RuntimeError('second') from None\n",
    "base exception": "class Odd(BaseException):\n    pass\nraise Odd('x')\n",
    "excepthook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__, file=sys.stderr)\n1 / 0\n",
    "excepthook fails": "import sys\ndef hook(*a):\n    raise TypeError('hook')\nsys.excepthook = hook\n1 / 0\n",
    "atexit": "import atexit\natexit.register(print, 'bye')\n1 / 0\n",
    "atexit and exit": "import atexit, sys\natexit.register(print, 'bye')\nsys.exit(6)\n",
    "atexit fails": "import atexit\natexit.register(lambda: 1 / 0)\nprint('x')\n",
    "thread goes on": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()\nprint('main')\n"
    ),
    "pool goes on": (
        "from concurrent.futures import ThreadPoolExecutor\nimport time\n"
        "ThreadPoolExecutor().submit(lambda: (time.sleep(0.3), print('pool')))\n1 / 0\n"
    ),
    "unflushed": "import sys\nsys.stdout.write('no newline')\n",
    "stderr replaced": "import sys\nsys.stderr = sys.stdout\n1 / 0\n",
    "pickles a class": "import pickle\nclass C:\n    pass\nprint(type(pickle.loads(pickle.dumps(C()))) is C)\n",
    "cookie": "# -*- coding: latin-1 -*-\nprint(ascii('\\xe4'))\n",
    "future": "from __future__ import annotations\ndef f(x: nothing): ...\nprint(f.__annotations__)\n",
    "annotations": "x: int = 3\nprint(__annotations__)\n",
    "processes": (
        "import multiprocessing as mp, os\n"
        "def f(x):\n    return x * 2\n"
        "if __name__ == '__main__':\n"
        "    print(mp.current_process().name, mp.parent_process())\n"
        "    for method in ('fork', 'spawn'):\n"
        "        with mp.get_context(method).Pool(1) as pool:\n            print(pool.map(f, [1, 2]))\n"
    ),
}
if sys.version_info >= (3, 11):
    ENDINGS["group"] = (
        "def f():\n    1 / 0\ntry:\n    f()\nexcept ZeroDivisionError as e:\n"
        "    raise ExceptionGroup('two', [e, ValueError('v')])\n"
    )
    ENDINGS["note"] = "e = ValueError('x')\ne.add_note('a note')\nraise e\n"


def without_addresses(text: str) -> str:
    return re.sub("0x[0-9a-f]+", "0x", text)


@pytest.mark.parametrize("source", ENDINGS.values(), ids=ENDINGS.keys())
def test_ends_as_under_python(shop: Workshop, source: str) -> None:
    shop.write(source)
    shop.write("def f(:\n", "broken_module.py")
    expected = shop.plain("script.py")
    found = shop.run("script.py")
    assert (found.code, found.out) == (expected.code, expected.out)
    assert without_addresses(found.err) == without_addresses(expected.err)


def test_a_script_with_null_bytes_is_told_in_almost_the_same_words(shop: Workshop) -> None:
    shop.write("x = 1\0\n")
    plain = shop.plain("script.py")
    if plain.code == 0:
        pytest.skip("this Python stops reading a script at a null byte, without a word")
    for found in (plain, shop.run("script.py")):
        assert found.code == 1
        assert "null bytes" in found.err
        assert "samestep" not in found.err


@pytest.mark.parametrize("name", ["script.py", "./script.py", "deep/er/script.py", "deep/../script.py", "absolute"])
def test_sees_what_python_shows_it(shop: Workshop, name: str) -> None:
    (shop.folder / "deep").mkdir()
    path = shop.write(WHO, "script.py" if name == "absolute" else name)
    words = [str(path) if name == "absolute" else name, "--epochs", "3", "--help", "-m", "a b"]
    expected = shop.plain(*words)
    assert expected.code == 0
    assert shop.run(*words) == expected


def test_follows_a_link_for_the_path_as_python_does(shop: Workshop) -> None:
    shop.write("print('helper')", "real/helper.py")
    shop.write("import helper\n" + WHO, "real/script.py")
    (shop.folder / "link.py").symlink_to(shop.folder / "real" / "script.py")
    expected = shop.plain("link.py")
    assert expected.code == 0
    assert shop.run("link.py") == expected


@pytest.mark.parametrize("module", ["tool", "package", "package.inner", "package.absent", "package.raises"])
def test_runs_a_module_as_python_does(shop: Workshop, module: str) -> None:
    shop.write(WHO, "tool.py")
    shop.write("", "package/__init__.py")
    shop.write(WHO, "package/__main__.py")
    shop.write(WHO, "package/inner.py")
    shop.write("raise OSError('x')", "package/raises.py")
    expected = shop.plain("-m", module, "--lr", "0.1")
    assert shop.run("-m", module, "--lr", "0.1") == expected


def test_runs_a_directory_and_a_zip_file(shop: Workshop) -> None:
    shop.write(WHO + "import beside\n", "folder/__main__.py")
    shop.write("print('beside')", "folder/beside.py")
    with zipfile.ZipFile(shop.folder / "app.zip", "w") as archive:
        archive.writestr("__main__.py", WHO)
    for name in ("folder", "app.zip"):
        expected = shop.plain(name, "x")
        assert expected.code == 0
        assert shop.run(name, "x") == expected


def test_main_reads_stdin_and_the_others_find_it_empty(shop: Workshop) -> None:
    shop.write(
        "import os, sys\n"
        "text = sys.stdin.read()\n"
        "open('read' + os.environ['TEST_RANK'], 'w').write(repr(text))\n"
        "print(text.upper())\n"
    )
    found = shop.run("script.py", stdin="a line\n")
    assert (found.code, found.out, found.err) == (0, "A LINE\n\n", "")
    assert (shop.folder / "read1").read_text() == "''"


def test_only_main_is_seen(shop: Workshop) -> None:
    shop.write("import os, sys\nprint('out', 1)\nsys.stderr.write('err\\n')\nos.system('echo child')\n")
    assert shop.run("script.py", devices="cpu:3") == shop.plain("script.py")


def test_a_reader_that_leaves_is_met_as_by_python(shop: Workshop, tmp_path: Path) -> None:
    shop.write("for i in range(100000):\n    print(i)\n")
    under_samestep = [sys.executable, str(shop.driver()), "run", "--devices=cpu:2", "script.py"]
    for command in ([sys.executable, "script.py"], under_samestep):
        line = " ".join(command) + " | head -1"
        found = subprocess.run(
            ["sh", "-c", line], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=HANG
        )
        assert found.stdout == "0\n"
        assert "BrokenPipeError" in found.stderr


LEFT_OPEN = """\
import csv, gzip, sys, zipfile
text = open("text.log", "w")
text.write("line\\n")
rows = csv.writer(open("rows.csv", "w"))
for i in range(1000):
    rows.writerow([i, i * i])

class Logger:
    def __init__(self):
        self.file = open("object.log", "w")
        self.file.write("abc\\n")
        self.itself = self
    def __del__(self):
        print("gone", self.file.closed, sys is not None)

logger = Logger()
packed = gzip.open("packed.gz", "wt")
packed.write("hello\\n")
raw = open("raw.bin", "ab")
raw.write(b"1234")
archive = zipfile.ZipFile("all.zip", "w")
archive.writestr("a", "b")

def main():
    inside = open("inside.log", "w")
    inside.write("in a function\\n")
    END
main()
"""


@pytest.mark.parametrize(
    "end", ["pass", "raise ValueError('x')", "sys.exit('text')", "import os; os.kill(os.getpid(), 2)"]
)
def test_files_that_are_never_closed_are_whole(end: str, shop: Workshop) -> None:
    found = []
    for run in (shop.plain, shop.run):
        shop.write(LEFT_OPEN.replace("END", end))
        ended = run("script.py")
        files = sorted(p for p in shop.folder.iterdir() if p.suffix in (".log", ".csv", ".gz", ".bin", ".zip"))
        sizes = {p.name: p.stat().st_size for p in files}
        assert gzip.decompress((shop.folder / "packed.gz").read_bytes()) == b"hello\n"
        with zipfile.ZipFile(shop.folder / "all.zip") as archive:
            assert archive.namelist() == ["a"]
        found.append((ended.code, ended.out, sizes))
        for path in files:
            path.unlink()
    assert found[0] == found[1]
    assert len(found[0][2]) == 7
