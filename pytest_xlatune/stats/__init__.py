"""Statistics: the score of a job, the comparison of scores, what a plan can detect. All is pure."""

from __future__ import annotations
