"""Each rule on its own examples and on the snippets: one alarm on the wrong ones, none on the right ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from lint_cases import lint_text, snippets

from samestep.lint.discovery import find_files
from samestep.lint.linting import lint_bytes
from samestep.lint.registry import Language, Rule, all_rules, choose

RULES = list(all_rules().values())
ROOT = Path(__file__).parents[2]


def _codes(text: str, language: Language, code: str) -> list[str]:
    rule = all_rules()[code]
    return [finding.code for finding in lint_text(text, language, optional=not rule.default)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_example_on_the_page_is_found_once_and_the_mended_one_not(rule: Rule) -> None:
    assert _codes(rule.wrong, rule.language, rule.code) == [rule.code]
    assert _codes(rule.right, rule.language, rule.code) == []


@pytest.mark.parametrize(("code", "language", "text"), snippets("WRONG"))
def test_a_wrong_snippet_is_found_once(code: str, language: Language, text: str) -> None:
    assert [each for each in _codes(text, language, code) if each == code] == [code]


@pytest.mark.parametrize(("code", "language", "text"), snippets("RIGHT"))
def test_a_right_snippet_is_not_found(code: str, language: Language, text: str) -> None:
    assert code not in _codes(text, language, code)


def test_every_rule_has_several_examples_of_both_kinds() -> None:
    counts = {kind: [code for code, _, _ in snippets(kind)] for kind in ("WRONG", "RIGHT")}
    for rule in RULES:
        if rule.group != "files":
            assert counts["WRONG"].count(rule.code) >= 1, f"{rule.code}: only the wrong example of its page"
            assert counts["RIGHT"].count(rule.code) >= 1, f"{rule.code}: only the right example of its page"


def test_a_loop_over_other_peoples_right_examples_raises_no_alarm_either() -> None:
    """What is right for one rule is right for the others, but for the snippets that show another rule's mistake."""
    wrong = [(rule.code, finding.code) for rule in RULES for finding in lint_text(rule.right, rule.language)]
    assert wrong == []


@pytest.mark.parametrize("folder", ["tests/programs", "examples", "benchmarks", "src"])
def test_no_alarm_on_the_programs_of_this_repository(folder: str) -> None:
    files = find_files([str(ROOT / folder)])
    assert files
    # examples/which_way shows plain DDP as it is: it does count padded samples twice.
    rules = choose([], ["SST205"] if folder == "examples" else [])
    found = [each for path, language in files for each in lint_bytes(path, Path(path).read_bytes(), language, rules)]
    assert found == []
