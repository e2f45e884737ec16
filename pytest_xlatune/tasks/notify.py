"""Messages to people through Apprise: Telegram, Slack, mail and others.

A target holds a secret. It comes from the environment or a file, and is given only to Apprise: no
message, log, ledger or error of ours repeats it. While Apprise works, logging is off, because its
libraries log their requests. If a message cannot be delivered, there is a warning, and the sweep
goes on.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
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
        self._has_warned = False

    def __repr__(self) -> str:
        return f"<Notifier to {len(self._targets)} targets>"

    def send(self, message: str) -> str:
        """Send a message whose first line is its title; return a warning, "" if all went well.

        After a warning, no further message is sent.
        """
        if not self._targets or self._has_warned:
            return ""
        title, _, body = message.partition("\n")
        warning = self._send(title, body or title)
        self._has_warned = bool(warning)
        return warning

    def _send(self, title: str, body: str) -> str:
        with _silence():
            try:
                import apprise
            except ImportError:
                return (
                    "a notification target is set, but Apprise is not installed, so no message "
                    "is sent; install pytest-xlatune[notify]"
                )
            sender = apprise.Apprise()
            known = [sender.add(target) for target in self._targets]
            if not all(known):
                return (
                    f"notification target {known.index(False) + 1} of {len(known)} is no URL that "
                    "Apprise knows, so no message is sent; see Apprise's list of services"
                )
            is_sent = sender.notify(title=hide_kept(title), body=hide_kept(body))
        return (
            "" if is_sent else "Apprise could not deliver a notification, so no further one is sent"
        )


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Switch logging off and hide warnings, which a user's pytest may turn into errors."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
