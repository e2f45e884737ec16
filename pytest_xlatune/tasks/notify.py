"""Messages to people through Apprise: Telegram, Slack, mail and others.

A target holds a secret. It comes from the environment or a file, and is given only to Apprise: no
message, log, ledger or error of ours repeats it. While Apprise works, logging is off, because its
libraries log their requests. If a message cannot be delivered, there is a warning, and the sweep
goes on.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from pathlib import Path

from pytest_xlatune import secure_files
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.redact import hide_kept

VARIABLE = "XLATUNE_NOTIFY_URL"


def read_targets(environ: Mapping[str, str], file: Path | None = None) -> tuple[str, ...]:
    """Return the targets that the environment or the file names; () if there are none.

    A file has one target in each line, and takes precedence. Blank lines and lines that begin with
    # are skipped.

    Raises:
        ConfigError: the file cannot be read or has no target.
    """
    if file is None:
        return tuple(environ.get(VARIABLE, "").split())
    try:
        lines = [line.strip() for line in secure_files.read_named(file).splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not a text file"
        raise ConfigError(
            f"notification targets cannot be read from {file}: {why}; expected one Apprise URL a "
            "line"
        ) from None
    targets = tuple(line for line in lines if line and not line.startswith("#"))
    if not targets:
        raise ConfigError(f"{file} names no notification target; expected one Apprise URL a line")
    return targets


class Notifier:
    """Sends messages to targets; if that fails, it warns once."""

    def __init__(self, targets: tuple[str, ...]) -> None:
        self._targets = targets

    def send(self, message: str) -> str:
        """Send a message whose first line is its title; return a warning, "" if all went well.

        After a warning, no further message is sent.
        """
        if not self._targets:
            return ""
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            # a user's pytest may turn warnings into errors
            with warnings.catch_warnings(action="ignore"):
                warning = _send(self._targets, message)
        finally:
            logging.disable(before)
        if warning:
            self._targets = ()
        return warning


def _send(targets: tuple[str, ...], message: str) -> str:
    try:
        import apprise
    except ImportError:
        return (
            "a notification target is set, but Apprise is not installed, so no message is sent; "
            "install pytest-xlatune[notify]"
        )
    sender = apprise.Apprise()
    if not all(sender.add(target) for target in targets):
        return (
            "a notification target is no URL that Apprise knows, so no message is sent; see "
            "Apprise's list of services"
        )
    title, _, body = message.partition("\n")
    if sender.notify(title=hide_kept(title), body=hide_kept(body or title)):
        return ""
    return "Apprise could not deliver a notification, so no further one is sent"
