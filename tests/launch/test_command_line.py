"""The command line: what is refused, in which words, and whose options are whose."""

from __future__ import annotations

import json

import pytest
from harness import Workshop

from samestep.cli import split_run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "no script given"),
        (["run", "--devices", "cpu:2"], "no script given"),
        (["run", "absent.py"], "there is no script 'absent.py'"),
        (["run", "scrpt.py"], "did you mean script.py?"),
        (["run", "nowhere/x.py"], "there is no directory 'nowhere'"),
        (["run", "folder"], "'folder' is a directory without a __main__.py"),
        (["run", "-"], "a script on stdin can be read only once"),
        (["run", "/dev/null"], "is not a regular file"),
        (["run", "-m", "absent_module"], "no module named 'absent_module'"),
        (["run", "-m", "script.py"], "no module named"),
        (["run", "-m", ""], "no module named ''"),
        (["run", "-m"], "requires an argument"),
        (["run", "--devices"], "requires an argument"),
        (["run", "--devices", "cpu:0", "script.py"], "write cpu:1"),
        (["run", "--devices=", "script.py"], "it is empty"),
        (["run", "--devices", "1,", "3", "script.py"], "a number is missing next to a comma"),
        (["run", "--gpus", "1，3", "script.py"], "fullwidth comma"),
        (["run", "--device", "cpu:2", "script.py"], "--devices); see samestep run --help"),
        (["run", "--devices", "free", "--wait", "3x", "script.py"], "'3x' is not a time"),
        (["script.py"], "to run a script, write samestep run script.py"),
        (["lint"], "samestep: no script given; write samestep lint"),
        (["run", "--explain", "nowhere/x.json", "script.py"], "there is no directory"),
        (["run", "--explain=", "script.py"], "--explain= names no file"),
        (["run", "--explain=folder", "script.py"], "is a directory"),
        (["rum", "script.py"], "no such command"),
        (["devices", "--bad"], "no such option"),
    ],
)
def test_refuses_in_one_message(shop: Workshop, words: list[str], said: str) -> None:
    shop.write("raise SystemExit('it was run')")
    (shop.folder / "folder").mkdir()
    found = shop.samestep(*words, SAMESTEP_DEVICES="cpu:1")
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("samestep: ")
    assert found.err.count("\n") == 1
    assert said in found.err


def test_torch_is_not_imported_to_refuse(shop: Workshop) -> None:
    shop.write("raise SystemExit('torch was imported')", "torch.py")
    assert shop.samestep("run", "absent.py", PYTHONPATH=f"{shop.folder}:{__import__('harness').SOURCE}").code == 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], []),
        (["a.py"], ["--", "a.py"]),
        (["a.py", "--help", "-m", "x"], ["--", "a.py", "--help", "-m", "x"]),
        (["--devices", "1", "a.py", "--devices", "2"], ["--devices", "1", "--", "a.py", "--devices", "2"]),
        (["--gpus=1", "a.py"], ["--gpus=1", "--", "a.py"]),
        (["-m", "mod", "--lr", "3"], ["-m", "mod", "--", "--lr", "3"]),
        (["-mmod", "-x"], ["-m", "mod", "--", "-x"]),
        (["--explain", "a.py", "b.json"], ["--explain=-", "--", "a.py", "b.json"]),
        (["--explain", "r.json", "a.py"], ["--explain=r.json", "--", "a.py"]),
        (["--explain=r.json", "a.py"], ["--explain=r.json", "--", "a.py"]),
        (["--explain", "-m", "mod"], ["--explain=-", "-m", "mod"]),
        (["--", "-odd.py", "-x"], ["--", "-odd.py", "-x"]),
        (["--help"], ["--help"]),
        (["a.py", "--", "x"], ["--", "a.py", "--", "x"]),
    ],
)
def test_splits_our_words_from_the_scripts(given: list[str], expected: list[str]) -> None:
    assert split_run(given) == expected


def test_the_scripts_words_arrive_unchanged(shop: Workshop) -> None:
    shop.write("import sys\nprint(sys.argv[1:])")
    words = ["--", "-m", "--devices", "--explain", "x.json", "", "--help"]
    assert shop.run("script.py", *words).out == f"{words}\n"


def test_an_option_behind_a_script_that_does_not_know_it_is_told(shop: Workshop) -> None:
    shop.write("import sys\nprint(sys.argv[1:])")
    found = shop.run("script.py", "--exact-random", "--lr=1", "--mode=x", "--exact-random")
    assert (found.code, found.out) == (0, "['--exact-random', '--lr=1', '--mode=x', '--exact-random']\n")
    assert found.err.startswith("samestep: --exact-random, --mode behind the script goes to the script; ")
    assert found.err.endswith("samestep run --exact-random … script.py\n")
    shop.write("import sys\nprint('--mode' in sys.argv, 'exact_random')")
    assert shop.run("script.py", "--exact-random", "--mode=x").err == ""


def test_the_default_is_said_in_one_line(shop: Workshop) -> None:
    shop.write("print('ran')")
    found = shop.samestep("run", "script.py", CUDA_VISIBLE_DEVICES="")
    assert (found.code, found.out) == (0, "ran\n")
    assert found.err.startswith("samestep: no GPU found (")
    assert found.err.endswith("); using cpu:2\n")


def test_the_script_sees_no_launcher_and_its_share_of_the_threads(shop: Workshop) -> None:
    shop.write(
        "import os, torch, threading\n"
        "print([n for n in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'SLURM_PROCID') if n in os.environ])\n"
        "print(torch.get_num_threads(), os.environ['OMP_NUM_THREADS'], threading.active_count())\n"
    )
    extra = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "x", "SLURM_PROCID": "1", "OMP_NUM_THREADS": "3"}
    found = shop.samestep("run", "--devices", "cpu:2", "script.py", **extra)
    threads = shop.plain("-c", "import torch; print(torch.get_num_threads())", OMP_NUM_THREADS="3").out.strip()
    assert (found.code, found.out, found.err) == (0, f"[]\n{threads} 3 1\n", "")


def test_lists_the_devices(shop: Workshop) -> None:
    found = shop.samestep("devices", CUDA_VISIBLE_DEVICES="")
    assert (found.code, found.err) == (0, "")
    assert "cpu:N" in found.out
    assert "uses cpu:2" in found.out
    listed = json.loads(shop.samestep("devices", "--json", CUDA_VISIBLE_DEVICES="").out)
    assert listed["gpus"] == []
    assert listed["default"] == "cpu:2"
    assert listed["no_gpu"]
    assert listed["cores"] >= 1


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["devices", "--help"], ["--version"]])
def test_helps(shop: Workshop, words: list[str]) -> None:
    found = shop.samestep(*words)
    assert (found.code, found.err) == (0, "")
    assert "samestep" in found.out
