"""What a script will choose, read from its source: right where it is told, and silent where it is not certain."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from samestep.launch import foresight
from samestep.launch.foresight import foresee
from samestep.launch.script import ScriptTarget

HEAD = "import argparse, os, sys\n"
PARSER = HEAD + "parser = argparse.ArgumentParser(description='x')\n"
GPU = PARSER + "parser.add_argument('--gpu', default='0', type=str, help='which')\n"
PARSED = GPU + "args = parser.parse_args()\n"
SET = "os.environ['CUDA_VISIBLE_DEVICES'] = {}\n"
MAIN = "if __name__ == '__main__':\n    main()\n"

# A source, its arguments, and what it chooses as far as that is certain.
TOLD = [
    (HEAD + SET.format("'1,3'"), "", "1,3"),
    ("import os\nfrom os import environ\nenviron['CUDA_VISIBLE_DEVICES'] = '2'\n", "", "2"),
    (HEAD + "os.environ.setdefault('CUDA_VISIBLE_DEVICES', '2')\n", "", "2"),
    (HEAD + "gpus = '1,2'\n" + SET.format("gpus"), "", "1,2"),
    (HEAD + "gpus = [1, 2]\n" + SET.format("f'{1},{3}'"), "", "1,3"),
    (HEAD + "gpus = ['1', '2']\n" + SET.format("','.join(gpus)"), "", "1,2"),
    (HEAD + "gpu: int = 3\n" + SET.format("str(gpu)"), "", "3"),
    (PARSED + SET.format("args.gpu"), "", "0"),
    (PARSED + SET.format("args.gpu"), "--gpu 1,3", "1,3"),
    (PARSED + SET.format("args.gpu"), "--gpu=2 --other 5", "2"),
    (PARSED + SET.format("args.gpu"), "--gpu 1 --gpu 2", "2"),
    (
        GPU
        + "parser.add_argument('-g', '--id', type=int, default=0)\na = parser.parse_args()\n"
        + SET.format("str(a.id)"),
        "-g 3",
        "3",
    ),
    (
        PARSER + "parser.add_argument('--gpu-ids', dest='ids')\na = parser.parse_args()\n" + SET.format("a.ids"),
        "--gpu-ids 1",
        "1",
    ),
    (
        PARSER + "parser.add_argument('--gpu-ids', default='1')\na = parser.parse_args()\n" + SET.format("a.gpu_ids"),
        "",
        "1",
    ),
    (PARSED + "print(args)\nif args.gpu != '':\n    " + SET.format("args.gpu"), "--gpu 1", "1"),
    (PARSED + "if args.gpu is not None:\n    " + SET.format("args.gpu"), "", "0"),
    (HEAD + "def main():\n    " + SET.format("'1'") + MAIN, "", "1"),
    (
        PARSED + "def setup(gpu):\n    " + SET.format("gpu") + "def main():\n    setup(args.gpu)\n" + MAIN,
        "--gpu 2",
        "2",
    ),
    (GPU + "def main():\n    args = parser.parse_args()\n    " + SET.format("args.gpu") + MAIN, "--gpu 2", "2"),
    (GPU + "def get():\n    return parser.parse_args()\n" + SET.format("'4'"), "", "4"),
    (HEAD + "with open(os.devnull) as f:\n    " + SET.format("'1'"), "", "1"),
    (HEAD + "import numpy as np\nfor i in range(3):\n    x = i\n" + SET.format("'1'"), "", "1"),
    (HEAD + "if True:\n    pass\nelse:\n    " + SET.format("'1'") + SET.format("'2'"), "", "2"),
]

# Sources of which nothing is certain, or that choose nothing.
SILENT = [
    ("print('nothing')\n", ""),
    (HEAD + "print(os.environ.get('CUDA_VISIBLE_DEVICES'))\n" + SET.format("'1'"), ""),
    (HEAD + SET.format("open('gpu.txt').read()"), ""),
    (HEAD + "if len(sys.argv) > 5:\n    " + SET.format("'1'"), ""),
    (HEAD + "try:\n    " + SET.format("'1'") + "except KeyError:\n    pass\n", ""),
    (HEAD + "for gpu in '12':\n    " + SET.format("gpu"), ""),
    (HEAD + "gpu = '1'\nfor gpu in '23':\n    pass\n" + SET.format("gpu"), ""),
    (HEAD + "gpu = '1'\ngpu += '2'\n" + SET.format("gpu"), ""),
    (HEAD + "def unused():\n    " + SET.format("'1'"), ""),
    (HEAD + "def f():\n    " + SET.format("'1'") + "x = [f() for _ in sys.argv]\n", ""),
    (HEAD + "def f():\n    " + SET.format("'1'") + "call = f\n" + SET.format("'2'"), ""),
    (HEAD + "gpu = '1'\ndef f():\n    global gpu\n    gpu = '2'\nf()\n" + SET.format("gpu"), ""),
    (HEAD + "if __name__ == 'other':\n    " + SET.format("'1'"), ""),
    (PARSED + "if args.gpu == '':\n    " + SET.format("args.gpu"), "--gpu 1"),
    (PARSED + SET.format("args.gpu"), "--gp 1"),
    (PARSED + SET.format("args.other"), ""),
    (GPU + "args, rest = parser.parse_known_args()\n" + SET.format("args.gpu"), "--gpu 1"),
    (GPU + "parser.set_defaults(gpu='3')\nargs = parser.parse_args()\n" + SET.format("args.gpu"), ""),
    (PARSED + "from util import update\nupdate(args)\n" + SET.format("args.gpu"), ""),
    (PARSED + "args.gpu = open('x').read()\n" + SET.format("args.gpu"), ""),
    (PARSER + "parser.add_argument('--gpu', nargs='+')\na = parser.parse_args()\n" + SET.format("a.gpu"), "--gpu 1 2"),
    (
        PARSER
        + "parser.add_argument('--gpu', type=lambda s: s + '0')\na = parser.parse_args()\n"
        + SET.format("a.gpu"),
        "--gpu 1",
    ),
    (PARSER + "parser.add_argument('gpu')\na = parser.parse_args()\n" + SET.format("a.gpu"), "1"),
    (
        HEAD
        + "p = argparse.ArgumentParser(argument_default='7')\np.add_argument('--gpu')\na = p.parse_args()\n"
        + SET.format("a.gpu"),
        "",
    ),
    (PARSED + SET.format("None if args.gpu else '1'"), ""),
    (PARSED + SET.format("1"), ""),
    (HEAD + "raise SystemExit\n" + SET.format("'1'"), ""),
    (HEAD + "import torch\ncuda = torch.cuda.is_available()\n" + SET.format("'1'"), ""),
    (HEAD + "import torch\nx = torch.ones(3).to('cuda')\n" + SET.format("'1'"), ""),
    (HEAD + "import torch\nif torch.cuda.is_available():\n    pass\n" + SET.format("'1'"), ""),
    ("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'\nthis is no Python\n", ""),
]


def target(folder: Path, source: str, words: str) -> ScriptTarget:
    path = folder / "train.py"
    path.write_text(source)
    return ScriptTarget(str(path), None, tuple(words.split()))


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(("source", "words", "chosen"), TOLD, ids=range(len(TOLD)))
def test_is_told(source: str, words: str, chosen: str, tmp_path: Path) -> None:
    found = foresee(target(tmp_path, source, words))
    assert found is not None
    assert (found.visible, found.places) == (chosen, None)
    line = next(number for number, text in enumerate(source.splitlines(), 1) if "CUDA_VISIBLE" in text)
    if source.count("CUDA_VISIBLE") == 1:
        assert found.who == f"os.environ['CUDA_VISIBLE_DEVICES'] = {chosen!r} (train.py, line {line})"


@pytest.mark.parametrize(("source", "words"), SILENT, ids=range(len(SILENT)))
def test_is_silent(source: str, words: str, tmp_path: Path) -> None:
    assert foresee(target(tmp_path, source, words)) is None


def test_what_is_told_is_what_the_script_does(tmp_path: Path) -> None:
    """All of them in one process, each with its own arguments: the truth is the first value that is really set."""
    driver = (
        "import os, sys, runpy\n"
        "real, first = os.putenv, []\n"
        "os.putenv = lambda name, value: (first.append(value.decode()) if name == b'CUDA_VISIBLE_DEVICES' else None, "
        "real(name, value))\n"
        "for line in sys.stdin.read().splitlines():\n"
        "    sys.argv = line.split()\n"
        "    first.clear(); os.environ.pop('CUDA_VISIBLE_DEVICES', None)\n"
        "    try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "    except SystemExit: pass\n"
        "    sys.__stderr__.write(f'{first[0]}\\n')\n"
    )
    lines = []
    for index, (source, words, _) in enumerate(TOLD):
        if "--other" in words:  # argparse itself refuses it, before anything is chosen
            continue
        (tmp_path / f"script{index}.py").write_text(source.replace("import numpy as np", ""))
        lines.append((f"{tmp_path / f'script{index}.py'} {words}", TOLD[index][2]))
    ran = subprocess.run(
        [sys.executable, "-c", driver],
        input="\n".join(line for line, _ in lines),
        capture_output=True,
        text=True,
        timeout=60,
        env={name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.splitlines() == [chosen for _, chosen in lines]


def test_a_default_of_the_users_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert foresee(target(tmp_path, HEAD + "os.environ.setdefault('CUDA_VISIBLE_DEVICES', '2')\n", "")) is None


def test_endless_recursion_is_not_followed(tmp_path: Path) -> None:
    source = HEAD + "def f():\n    f()\nf()\n" + SET.format("'1'")
    assert foresee(target(tmp_path, source, "")) is None


def test_only_scripts_in_files_are_read(tmp_path: Path) -> None:
    assert foresee(ScriptTarget(None, "module", ())) is None
    assert foresee(ScriptTarget(str(tmp_path), None, ())) is None
    assert foresight.VARIABLE == "CUDA_VISIBLE_DEVICES"


def test_looking_ahead_imports_no_torch() -> None:
    """The launcher divides the cores before it does."""
    program = (
        "import sys, samestep.cli, samestep.launch.forms, samestep.launch.obeying; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
