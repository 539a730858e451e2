"""The pages under docs/lint are those of the rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from samestep.lint.pages import index, page
from samestep.lint.registry import GROUPS, Rule, all_rules
from samestep.lint.rules import RULES

FOLDER = Path(__file__).parents[2] / "docs" / "lint"
MEND = "run `python -m samestep.lint.pages docs/lint`"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_page_says_what_the_rule_says(rule: Rule) -> None:
    assert (FOLDER / f"{rule.code}.md").read_text(encoding="utf-8") == page(rule), MEND


def test_the_index_lists_the_rules_and_there_are_no_other_pages() -> None:
    assert (FOLDER / "index.md").read_text(encoding="utf-8") == index(), MEND
    assert {path.name for path in FOLDER.iterdir()} == {"index.md", *(f"{rule.code}.md" for rule in RULES)}, MEND


def test_codes_and_names_are_unique_and_well_formed() -> None:
    assert len({rule.code for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES) == len(all_rules())
    for rule in RULES:
        assert re.fullmatch(r"SST\d{3}", rule.code) and rule.code[3] in GROUPS
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.name), rule.name
        for text in (rule.summary, rule.why, rule.mend):
            assert text == text.strip() and text.endswith("."), (rule.code, text)
        assert rule.python_checks or rule.shell_checks or rule.group == "files", rule.code


def test_there_are_at_least_twenty_rules_about_training() -> None:
    assert len([rule for rule in RULES if rule.group != "files"]) >= 20
