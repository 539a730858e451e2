"""Files that are odd, broken or hostile: one clear finding, never a traceback, and nothing is run."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lint_cases import snippets

from samestep.lint.findings import Finding
from samestep.lint.linting import lint_bytes
from samestep.lint.registry import Language, all_rules

RULES = list(all_rules().values())
MISTAKE = "os.environ['CUDA_VISIBLE_DEVICES'] = 1"


def _lint(data: bytes, language: Language = "python") -> list[Finding]:
    return lint_bytes("x", data, language, RULES)


def _found(data: bytes) -> list[tuple[str, int, int]]:
    return [(each.code, each.span.line, each.span.column) for each in _lint(data) if each.code != "SST112"]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"def f(:\n  pass\n", 1),
        (b"x = 1\n\ny = (\n", 3),
        (b"if x:\n\ty = 1\n        z = 2\n", 3),
        (b"x = 1\ny = '\0'\n", 2),
        (b"x = 1\n# \xff\n", 2),
        (b"# coding: nonsense\nx = 1\n", 1),
        ("import os\n".encode("utf-16"), 1),
        (b"\x7fELF\0\0\0", 1),
        (b"x = " + b"(" * 500 + b")" * 500, 1),
    ],
)
def test_what_cannot_be_read_is_one_finding_at_its_line(data: bytes, line: int) -> None:
    found = _lint(data)
    assert [(each.code, each.span.line) for each in found] == [("SST001", line)]
    assert "\n" not in found[0].message


@pytest.mark.parametrize(
    "expression",
    ["-" * 100_000 + "1", "+".join(["1"] * 20_000), "a" + ".b" * 5_000, "f" + "()" * 5_000],
    ids=["minus", "plus", "dot", "call"],
)
def test_deep_nesting_is_read_or_refused_in_one_finding(expression: str) -> None:
    found = [finding.code for finding in _lint(f"import os\n{MISTAKE}; x = {expression}\n".encode())]
    assert [code for code in found if code != "SST112"] in (["SST001"], ["SST103"])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_line_end_counts_as_python_counts(end: str) -> None:
    text = end.join(["import os", "x = '''", "\f", "'''", "", MISTAKE, ""])
    assert _found(text.encode()) == [("SST103", 6, 38)]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_moves_no_column(mark: bytes) -> None:
    assert _found(mark + b"import os; " + MISTAKE.encode()) == [("SST103", 1, 49)]


def test_columns_are_characters() -> None:
    assert _found(f"import os; 変数 = 'é'; {MISTAKE}\n".encode()) == [("SST103", 1, 59)]


def test_tabs_count_as_one_character() -> None:
    assert _found(f"import os\nif x:\n\t\t{MISTAKE}\n".encode()) == [("SST103", 3, 40)]


@pytest.mark.parametrize(
    "old",
    [
        "print 'loss', loss",
        "print",
        "print >>sys.stderr, 'x'",
        "print 'a %d' % (\n    1,\n    2)",
        "exec 'x = 1'",
        "raise ValueError, 'x'",
        "try:\n    pass\nexcept IOError, e:\n    print e",
        "if x: print 'y'",
        "for i in range(3):\n    print i,\n    print i",
        'print "a" \\\n    "b"',
    ],
)
def test_python_2_is_one_finding_and_the_rest_is_checked(old: str) -> None:
    found = _found(f"import os\n{old}\n{MISTAKE}\n".encode())
    line = 3 + old.count("\n")
    if old in ("print", "print >>sys.stderr, 'x'"):  # an expression for Python 3, too
        assert found == [("SST103", line, 38)]
    else:
        assert [code for code, _, _ in found] == ["SST001", "SST103"]
        assert found[1] == ("SST103", line, 38)


def test_nothing_is_run_and_torch_is_not_imported(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import torch, os\nopen({str(tmp_path / 'ran')!r}, 'w')\n{MISTAKE}\n")
    (tmp_path / "torch.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    program = (
        "import sys\nfrom samestep.lint.running import lint_paths\n"
        f"code = lint_paths([{str(script)!r}], 'text', [], [], False)\n"
        "assert code == 1, code\n"
        "assert not {'torch', 'numpy', 'libcst'} & {name.split('.')[0] for name in sys.modules}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists() and not (tmp_path / "imported").exists()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200))
def test_any_bytes_are_survived(data: bytes) -> None:
    _lint(data)
    _lint(data, "shell")


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text(alphabet="CUDA_VISIBLE=2,3 '\"$(){}<>|&;#\\\n\t`，", max_size=80))
def test_any_shell_is_survived(text: str) -> None:
    for finding in _lint(("CUDA_VISIBLE_DEVICES=" + text).encode(), "shell"):
        assert (finding.span.line, finding.span.column) <= (finding.span.end_line, finding.span.end_column)


def test_snippets_with_something_cut_out_are_survived() -> None:
    """The wrong snippets, each with a random piece taken out or doubled: findings, not tracebacks."""
    generator = random.Random(0)
    for _, language, text in snippets("WRONG") + snippets("RIGHT"):
        start = generator.randrange(len(text))
        end = min(len(text), start + generator.randrange(1, 12))
        for changed in (text[:start] + text[end:], text[:end] + text[start:]):
            _lint(changed.encode(), language)
