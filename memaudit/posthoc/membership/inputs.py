"""Texts, labels and sources as users give them, in lists or by id, turned into dictionaries by id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memaudit.errors import ConfigurationError, InputTypeError

Texts = Mapping[str, str] | Sequence[str]
Labels = Mapping[str, int] | Sequence[int | bool | None] | None
Groups = Mapping[str, str] | Sequence[str] | None


def texts_by_id(texts: Texts) -> dict[str, str]:
    """Return texts by id; those of a list are named by their place.

    Raises:
        InputTypeError: a text is no string, or texts is one string.
        ConfigurationError: there are none.
    """
    if isinstance(texts, str):
        raise InputTypeError("texts is one string; give a list of texts, or texts by id")
    found = dict(texts) if isinstance(texts, Mapping) else {str(i): text for i, text in enumerate(texts)}
    wrong = [id for id, text in found.items() if not isinstance(text, str)]
    if wrong:
        raise InputTypeError(f"text {wrong[0]} is a {type(found[wrong[0]]).__name__}; give strings")
    if not found:
        raise ConfigurationError("there are no texts; give at least one")
    return found


def labels_by_id(labels: Labels, texts: Mapping[str, str]) -> dict[str, int]:
    """Return labels by id, those that are None left out.

    Raises:
        ConfigurationError: they do not fit the texts, or are neither 0 nor 1.
    """
    if labels is None:
        return {}
    if not isinstance(labels, Mapping):
        if len(labels) != len(texts):
            raise ConfigurationError(
                f"{len(labels)} labels were given for {len(texts)} texts; give one each, or None"
            )
        labels = {id: label for id, label in zip(texts, labels, strict=True) if label is not None}
    strangers = [id for id in labels if id not in texts]
    if strangers:
        raise ConfigurationError(
            f"{len(strangers)} labels have no text, first {strangers[0]}; labels are joined by id"
        )
    wrong = [id for id, label in labels.items() if label not in (0, 1)]
    if wrong:
        raise ConfigurationError(
            f"label of {wrong[0]} is {labels[wrong[0]]!r}; give 1 (member) or 0 (non-member)"
        )
    return {id: int(label) for id, label in labels.items()}


def groups_by_id(groups: Groups, texts: Mapping[str, str]) -> dict[str, str]:
    """Return sources by id.

    Raises:
        ConfigurationError: they do not fit the texts.
    """
    if groups is None:
        return {}
    if isinstance(groups, Mapping):
        return {id: str(one) for id, one in groups.items() if id in texts}
    if len(groups) != len(texts):
        raise ConfigurationError(f"{len(groups)} groups were given for {len(texts)} texts; give one each")
    return {id: str(one) for id, one in zip(texts, groups, strict=True)}
