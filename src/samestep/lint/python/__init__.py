"""A Python file as the rules ask about it: its tree, what names stand for, what variables hold, who reaches a line."""
