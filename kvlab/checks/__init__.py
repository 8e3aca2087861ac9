"""Checks for the graded exercises: `check(fn)`, `hint("offset_mask")`, `progress()`.

A check runs an exercise's stages from basic to subtle and answers passed, incorrect, not attempted, your code raised,
or out of time; when the code behaves like a known mistake, it names the mistake. See docs/checks.md.
"""

from kvlab.checks.files import yours
from kvlab.checks.notebook import CheckFailed, check, hint, progress

__all__ = ["CheckFailed", "check", "hint", "progress", "yours"]
