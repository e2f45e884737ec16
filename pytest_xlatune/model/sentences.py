"""Texts of messages that are used in several places; others are written where they belong."""

from __future__ import annotations

FEW_DF = "{df} degrees of freedom are left, {needed} needed: too few trials"
IN_BRACKETS = " ({text})"
ITS_FIRST_RUN = "its first run"
ITS_FIRST_RUN_AGAIN = "its first run; it is run again"
NO_STEP = "no step was logged"
PROGRAM_REFUSED = "{program} is left out, the compiler refuses it: {said}"
PROGRAM_TOO_LARGE = "{program} is left out, it needs {gib:.3g} GiB of a device"
RANKING_ONLY = "ranking only: {why}"
RUN_AGAIN = "not measured: {why}; run it again"
SETTINGS_CHANGED = "settings changed since they were measured, old trials ignored: {arms}"
SHARE_OF_STEP = "{parts: and }, {share:size} of a step"
SHARE_OF_STEP_ALONE = "{parts: and } alone, {share:size} of a step"
THE_REFERENCE = "the reference"
WITH_DETAIL = "{why} ({detail})"
