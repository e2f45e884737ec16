"""Steps to a score, scores to a comparison, what a plan can see. Pure."""

from __future__ import annotations
