"""The languages of the tuning document: the code has the English texts, and `po/` the others.

    say = Translator(Language.CHINESE)
    say("There is no winner to explain.")               "没有需要解释的胜出者。"
    say.count(3, "{n} job", "{n} jobs")                 "3 个作业"

Msgids (the English texts) and catalogs have the form of GNU gettext. People edit `po/zh.po`, and
`make translations` compiles it to `po/zh.mo`, which the package reads. Headings of sections, flags,
ids, kinds of verdicts and log lines are the same in all languages, so they are not msgids.
"""

from __future__ import annotations

import functools
import gettext
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import msgspec

from pytest_xlatune.model.message import Message, sentence
from pytest_xlatune.report.document import Text, plain


class Language(StrEnum):
    """A language of the tuning document; the value is a part of the file's name."""

    ENGLISH = "en"
    CHINESE = "zh"


def N_(msgid: str) -> str:  # noqa: N802 - gettext's own name for it
    """Mark a text as a msgid, if it is not written as an argument of `say`."""
    return msgid


class Translator(msgspec.Struct, frozen=True):
    """Writes sentences in one language: `say("Model: {text}", text="tiny")`."""

    language: Language

    def __call__(self, msgid: str, /, **fields: object) -> str:
        """Return the sentence with its fields filled in."""
        return _catalog(self.language).gettext(msgid).format(**fields)

    def text_of(self, msgid: str) -> str:
        """Return a msgid in this language, without filling in its fields."""
        return _catalog(self.language).gettext(msgid)

    @property
    def is_english(self) -> bool:
        """Whether the language is English, so that nothing has to be translated."""
        return self.language is Language.ENGLISH

    def says(self, message: Message) -> bool:
        """Return whether a message is in this language: it is translated, or this is English."""
        return self.is_english or self.text_of(message.text) != message.text

    def text(self, msgid: str, /, **fields: object) -> Text:
        """Return the sentence as a paragraph of a document."""
        return Text(text=self(msgid, **fields))

    def count(self, number: int, one: str, many: str) -> str:
        """Return a counted noun, e.g. `3 jobs`; `one` and `many` are msgids with the field `n`."""
        return _catalog(self.language).ngettext(one, many, number).format(n=number)


@functools.cache
def _catalog(language: Language) -> gettext.NullTranslations:
    if language is Language.ENGLISH:
        return gettext.NullTranslations()
    compiled = Path(__file__).with_name("po") / f"{language}.mo"
    with compiled.open("rb") as file:
        return gettext.GNUTranslations(file)


ENGLISH = Translator(Language.ENGLISH)


def plainly(message: Message | None, say: Translator = ENGLISH) -> str:
    """Return the sentence of a message as one line of plain text; "" for None."""
    return plain(sentence(message, say.text_of))


def joined(messages: Iterable[Message]) -> str:
    """Return the sentences of several messages in one line of plain text."""
    return "; ".join(map(plainly, messages))
