"""`--fix`: what is mended, and that nothing else in the file changes, to the byte."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from lint_cases import HEADER, lint_text, snippets

from samestep.errors import SamestepError
from samestep.lint.fixing import apply_fixes
from samestep.lint.linting import lint_bytes
from samestep.lint.registry import Language, Rule, all_rules, choose
from samestep.lint.running import lint_paths

RULES = [rule for rule in all_rules().values() if rule.fixed is not None]
needs_libcst = pytest.mark.usefixtures("libcst")


@pytest.fixture
def libcst() -> None:
    pytest.importorskip("libcst", reason="the extra `lint` is not installed")


def _mend(text: str | bytes, language: Language = "python", rules: list[Rule] | None = None) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    chosen = choose([], []) if rules is None else rules
    for _ in range(10):
        data, mended = apply_fixes(data, language, lint_bytes("x", data, language, chosen))
        if not mended:
            return data
    raise AssertionError("the fixes do not come to an end")


@needs_libcst
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_fix_on_the_page_is_what_is_made(rule: Rule) -> None:
    assert rule.fixed is not None
    mended = _mend(rule.wrong, rule.language, [rule])
    assert mended.decode() == rule.fixed
    assert not [each for each in lint_text(rule.fixed, rule.language, optional=True) if each.code == rule.code]


@needs_libcst
@pytest.mark.parametrize(("code", "language", "text"), snippets("WRONG"))
def test_a_fix_removes_the_finding_and_leaves_a_file_that_parses(code: str, language: Language, text: str) -> None:
    rule = all_rules()[code]
    before = lint_bytes("x", text.encode(), language, [rule])
    assert rule.fixable or not any(each.fix for each in before)  # the page would not say so
    mended = _mend(text, language, [rule])
    after = lint_bytes("x", mended, language, list(all_rules().values()))
    assert not [each for each in after if each.code == "SST001"]
    assert (mended != text.encode()) == any(each.fix for each in before)
    assert not any(each.code == code and each.fix for each in after)


@needs_libcst
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("indent", ["    ", "\t", "  "])
def test_line_ends_byte_order_mark_and_indentation_stay(end: str, mark: str, indent: str) -> None:
    lines = [
        "import torch.distributed as dist  # ünï",
        "",
        "def f( x,y ) :",
        "IND# a comment",
        "INDx =  dist.all_reduce( x ) ; y=1   # another",
        "INDreturn x,",
    ]
    text = mark + end.join(lines).replace("IND", indent)  # and no line end at the end
    wanted = text.replace("x =  dist.all_reduce( x )", "dist.all_reduce( x )")
    assert _mend(text).decode() == wanted


@needs_libcst
def test_an_argument_is_added_in_the_style_of_the_call() -> None:
    text = HEADER + (
        "model = DDP(model)\n"
        "model.load_state_dict(\n    torch.load(\n"
        "        path,  # the file\n        weights_only=True,  # why\n    )\n)\n"
    )
    wanted = text.replace("# why\n", '# why\n        map_location="cpu",\n')
    assert _mend(text).decode() == wanted


@needs_libcst
@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ("DataLoader(d, shuffle=True, sampler=DistributedSampler(d))", "DataLoader(d, sampler=DistributedSampler(d))"),
        ("DataLoader(d, sampler=DistributedSampler(d), shuffle=True)", "DataLoader(d, sampler=DistributedSampler(d))"),
        (
            "DataLoader(\n    d,\n    sampler=DistributedSampler(d),\n    shuffle=True,\n)",
            "DataLoader(\n    d,\n    sampler=DistributedSampler(d),\n)",
        ),
    ],
)
def test_an_argument_is_taken_away_with_its_comma(call: str, wanted: str) -> None:
    assert _mend(f"{HEADER}x = {call}\n").decode() == f"{HEADER}x = {wanted}\n"


@pytest.mark.parametrize("use", ["print(model.fc)", "load = model\nprint(model.fc)"])
def test_a_wrapper_that_is_not_there_on_one_gpu_is_found_and_not_mended(use: str) -> None:
    conditional = "if torch.cuda.device_count() > 1:\n    model = nn.DataParallel(model)\n"
    for wrap in (conditional, "model = nn.DataParallel(model) if torch.cuda.device_count() > 1 else model\n"):
        (found,) = lint_text(f"{HEADER}{wrap}{use}\n")
        assert found.code == "SST508" and not found.fix
    (found,) = lint_text(f"{HEADER}model = nn.DataParallel(model)\n{use}\n")
    assert found.fix


@needs_libcst
@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        ("'--gpu', type=int, default=0", "str(args.gpu)"),
        ("'gpu', type=int", "str(args.gpu)"),
        ("'--gpu', type=int, required=True", "str(args.gpu)"),
        ("'--gpu', nargs='+', type=int, default=[0]", '",".join(map(str, args.gpu))'),
        ("'--gpu', type=int", "args.gpu"),  # may be None, of which no device is made
        ("'--gpu', nargs='+', type=int", "args.gpu"),
    ],
)
def test_an_argument_is_made_a_string_only_if_it_is_always_given(option: str, wanted: str) -> None:
    start = f"import argparse, os\np = argparse.ArgumentParser()\np.add_argument({option})\nargs = p.parse_args()\n"
    assert [each.code for each in lint_text(f"{start}os.environ['CUDA_VISIBLE_DEVICES'] = args.gpu\n")] == ["SST103"]
    mended = _mend(f"{start}os.environ['CUDA_VISIBLE_DEVICES'] = args.gpu\n").decode()
    assert mended == f"{start}os.environ['CUDA_VISIBLE_DEVICES'] = {wanted}\n"


@needs_libcst
def test_nothing_is_mended_inside_an_f_string() -> None:
    """Before Python 3.12 the places in it are not known, and a fix could put the same quotes into it."""
    text = f'{HEADER}model = nn.DataParallel(model)\nprint(f"""\n{{model.fc}} {{model.bias}}\n""", model.weight)\n'
    found = lint_text(text)
    assert [(each.code, each.span.line, bool(each.fix)) for each in found] == [
        ("SST508", 10, False),
        ("SST508", 10, False),
        ("SST508", 12, True),
    ]
    assert _mend(text).decode() == text.replace("model.weight", "model.module.weight")


@needs_libcst
def test_columns_behind_characters_of_several_bytes_are_right() -> None:
    text = "import os\nüber = '，，，'; os.environ['CUDA_VISIBLE_DEVICES'] = '2，3'  # ，\n"
    assert _mend(text).decode() == text.replace("'2，3'", "'2,3'")


@needs_libcst
def test_other_encodings_stay() -> None:
    text = "# -*- coding: latin-1 -*-\nimport os\nname = 'é'\nos.environ['CUDA_VISIBLE_DEVICES'] = 1\n"
    assert _mend(text.encode("latin-1")) == text.replace("= 1\n", '= "1"\n').encode("latin-1")


@needs_libcst
def test_several_fixes_of_one_line_are_made_in_turn() -> None:
    text = "import os\nos.environ['CUDA_VISIBLE_DEVICE'] = '1，2'\n"
    assert _mend(text).decode() == "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '1,2'\n"


@needs_libcst
def test_a_guard_keeps_comments_before_the_statement() -> None:
    text = "import torch.multiprocessing as mp\n\n# start\nmp.spawn(f, nprocs=2)  # go\n"
    wanted = (
        'import torch.multiprocessing as mp\n\n# start\nif __name__ == "__main__":\n    mp.spawn(f, nprocs=2)  # go\n'
    )
    assert _mend(text).decode() == wanted


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_shell_scripts_are_mended_as_text(end: str) -> None:
    text = f"#!/bin/sh{end}CUDA_VISIBLE_DEVICES= 2, 3 \\{end}  python a.py  # 2， 3{end}"
    assert _mend(text, "shell").decode() == text.replace("= 2, 3", "=2,3")


def test_without_libcst_the_mend_is_said_and_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "libcst", None)
    python, shell = tmp_path / "a.py", tmp_path / "a.sh"
    python.write_text("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = 1\n")
    shell.write_text("CUDA_VISIBLE_DEVICES= 1 python a.py\n")
    with pytest.raises(SamestepError, match=r"pip install 'samestep\[lint\]'"):
        lint_paths([str(python), str(shell)], "text", [], [], fix=True)
    assert shell.read_text() == "CUDA_VISIBLE_DEVICES= 1 python a.py\n"
    assert lint_paths([str(python)], "text", [], [], fix=False) == 1
    assert lint_paths([str(shell)], "text", [], [], fix=True) == 0
    assert shell.read_text() == "CUDA_VISIBLE_DEVICES=1 python a.py\n"


@needs_libcst
def test_mode_and_links_of_the_file_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real.py", tmp_path / "link.py"
    real.write_text("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = 1\n")
    real.chmod(0o750)
    link.symlink_to(real)
    assert lint_paths([str(link)], "text", [], [], fix=True) == 0
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o750
    assert real.read_text() == "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = \"1\"\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.py", "real.py"]


@needs_libcst
def test_a_file_without_a_finding_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("import torch\n")
    before = path.stat()
    assert lint_paths([str(path)], "text", [], [], fix=True) == 0
    assert path.stat().st_ino == before.st_ino and path.stat().st_mtime_ns == before.st_mtime_ns


@needs_libcst
def test_python_2_is_linted_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "old.py"
    text = "import os\nprint 'x'\nos.environ['CUDA_VISIBLE_DEVICES'] = 1\n"
    path.write_text(text)
    assert lint_paths([str(path)], "text", [], [], fix=True) == 1
    assert path.read_text() == text
