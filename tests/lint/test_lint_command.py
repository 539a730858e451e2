"""`samestep lint` as a command: exit codes, formats, what is found in directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from samestep.cli import main
from samestep.lint import running
from samestep.lint.pages import page
from samestep.lint.registry import all_rules

WRONG = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = 1\n"


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "right.py").write_text("import os\n")
    (tmp_path / "run.sh").write_text("CUDA_VISIBLE_DEVICES= 2,3 python a.py\n")
    (tmp_path / "tool").write_text("#!/usr/bin/env -S python3 -u\n" + WRONG)
    (tmp_path / "notes.txt").write_text("CUDA_VISIBLE_DEVICES= 2,3\n")
    for folder in (".hidden", "venv", "__pycache__", "deep/er"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "inner.py").write_text(WRONG)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    return tmp_path


def _run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["lint", *words])
    out, err = capfd.readouterr()
    code = ended.value.code
    assert isinstance(code, int)
    return code, out, err


@pytest.mark.usefixtures("workshop")
def test_findings_go_to_stdout_and_a_sum_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capfd, "wrong.py", "right.py")
    assert code == 1
    assert out.startswith("wrong.py:2:38: SST103 error: CUDA_VISIBLE_DEVICES is given int") and out.count("\n") == 1
    assert err == "samestep: 1 finding in 2 files, 1 of them with --fix; --explain CODE says more\n"
    assert _run(capfd, "right.py") == (0, "", "")


@pytest.mark.usefixtures("workshop")
def test_directories_are_searched_for_both_languages(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capfd, ".", "wrong.py", "./wrong.py")
    assert code == 1
    assert [line.split(":")[0] for line in out.splitlines()] == ["run.sh", "tool", "wrong.py", "deep/er/inner.py"]


@pytest.mark.usefixtures("workshop")
def test_an_empty_directory_is_said(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert _run(capfd, "empty") == (0, "", "samestep: there is no Python or shell file in empty\n")


@pytest.mark.usefixtures("workshop")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no script given"),
        (["absent.py"], "there is no file or directory 'absent.py'"),
        (["wrong.py", "absent"], "there is no file or directory 'absent'"),
        (["notes.txt"], "cannot be linted"),
        (["/dev/null"], "is not a regular file"),
        (["--format", "xml", "wrong.py"], "give text, json, github, sarif"),
        (["--select", "X1", "wrong.py"], "no rule matches 'X1'"),
        (["--ignore", ",", "wrong.py"], "--ignore names no rule"),
        (["--explain", "SST999"], "there is no rule 'SST999'"),
        (["--explain"], "requires an argument"),
        (["--fixx", "wrong.py"], "no such option"),
    ],
)
def test_wrong_usage_ends_with_2_and_one_message(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _run(capfd, *words)
    assert (code, out) == (2, "")
    assert said in err and err.startswith("samestep: ") and "Traceback" not in err


@pytest.mark.usefixtures("workshop")
def test_select_and_ignore_and_comments(capfd: pytest.CaptureFixture[str]) -> None:
    assert _run(capfd, "--select", "data,SST2", "--select", "SST601", "wrong.py")[0] == 0
    assert _run(capfd, "--ignore", "SST103", "wrong.py")[0] == 0
    assert _run(capfd, "wrong.py", "--select", "devices", "--ignore", "SST2")[0] == 1


def test_explain_prints_the_page(capfd: pytest.CaptureFixture[str]) -> None:
    for word in ("SST101", "sst101", "look-alike-character"):
        assert _run(capfd, "--explain", word) == (0, page(all_rules()["SST101"]), "")


def test_rules_lists_all(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capfd, "--rules")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(all_rules())


@pytest.mark.usefixtures("workshop")
def test_an_unreadable_file_is_a_finding(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def refuse(path: str, mode: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(running, "open", refuse, raising=False)  # the tests may run as root, who may read everything
    code, out, _ = _run(capfd, "wrong.py")
    assert code == 1 and out.startswith("wrong.py:1:1: SST001 error: it cannot be read: Permission denied")


@pytest.mark.usefixtures("workshop")
def test_json(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capfd, "--format", "json", "wrong.py")
    assert (code, err) == (1, "")
    (item,) = json.loads(out)
    place = {"path": "wrong.py", "line": 2, "column": 38, "end_line": 2, "end_column": 39}
    assert {key: item[key] for key in place} == place
    assert (item["code"], item["severity"], item["fixable"]) == ("SST103", "error", True)
    assert _run(capfd, "--format=json", "right.py")[:2] == (0, "[]\n")


def test_github(workshop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (workshop / "a,b:c%.py").write_text(WRONG)
    code, out, _ = _run(capfd, "--format", "github", "a,b:c%.py")
    assert code == 1
    start = "::error file=a%2Cb%3Ac%25.py,line=2,col=38,endLine=2,endColumn=39,title=samestep SST103::"
    assert out.startswith(start) and out.count("\n") == 1


def _is_text(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("text"), str) and bool(value["text"])


def test_sarif_has_the_shape_that_github_takes(workshop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What the 2.1.0 schema and GitHub's code scanning require of each part."""
    (workshop / "with blank ü.py").write_text("def f(:\n")
    code, out, _ = _run(capfd, "--format", "sarif", ".", str(workshop / "right.py"))
    log = json.loads(out)
    assert code == 1
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    assert set(log) == {"$schema", "version", "runs"}
    (run,) = log["runs"]
    assert set(run) == {"tool", "columnKind", "results"} and run["columnKind"] in (
        "utf16CodeUnits",
        "unicodeCodePoints",
    )
    driver = run["tool"]["driver"]
    assert driver["name"] and set(driver) == {"name", "semanticVersion", "rules"}
    for rule in driver["rules"]:
        assert isinstance(rule["id"], str) and isinstance(rule["name"], str)
        assert _is_text(rule["shortDescription"]) and _is_text(rule["fullDescription"]) and _is_text(rule["help"])
        assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
        assert all(isinstance(tag, str) for tag in rule["properties"]["tags"])
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])
    assert len(run["results"]) == 5
    prints = set()
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("warning", "error") and _is_text(result["message"])
        (location,) = result["locations"]
        uri = location["physicalLocation"]["artifactLocation"]["uri"]
        assert " " not in uri and uri.isascii() and not uri.startswith("./")
        region = location["physicalLocation"]["region"]
        assert all(type(number) is int and number >= 1 for number in region.values())
        assert (region["startLine"], region["startColumn"]) <= (region["endLine"], region["endColumn"])
        prints.add(tuple(result["partialFingerprints"].items()))
    assert len(prints) == len(run["results"])
