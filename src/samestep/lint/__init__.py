"""`samestep lint`: mistakes of multi-device training, found in source that is read and never run.

`python/` and `shell/` read a file into what the rules ask about; `rules/` holds the rules, one file a family;
`fixing.py` mends with libcst; `formats.py` writes the findings. Nothing here imports torch.
"""
