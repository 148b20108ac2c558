"""AttackResult: scores, metrics and costs of one run, small enough to print and to keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from memaudit.attacks.stack import Stacked
from memaudit.errors import ConfigurationError, MissingExtraError
from memaudit.posthoc.membership.metrics import Metrics
from memaudit.posthoc.membership.run import Cost

if TYPE_CHECKING:
    from pathlib import Path

STACK = "stack"


@dataclass(frozen=True, kw_only=True, slots=True)
class AttackResult:
    """What a run of membership attacks found.

    Args:
        scores: by attack label and record id, higher for more member-like; the stacked score among them.
        unscorable: by attack label and record id, the reason why there is no score.
        labels: 1 for members, 0 for non-members, by record id; records without a label are left out.
        metrics: by attack label; attacks without members and non-members enough are left out.
        by_group: metrics by attack label and group (source, thirds of length).
        tokens: scored tokens of each record.
        groups: source of each record, where one was given.
        cost: what was asked, forwarded and saved.
        stacked: folds, their seed and the weights of the stack, where it was fitted.
        dataset: dataset-level test and its blind baseline, where there were records enough.
        settings: everything that was chosen, and the policy on beginnings and lengths.
        notes: what a reader should know, among it attacks that were marked or left out.

    Example:
        >>> from memaudit.posthoc.attack import attack_signals
        >>> from memaudit.signals import TokenSignals
        >>> def one(p):
        ...     return TokenSignals.from_lists(token_ids=[1], logprob=[p], mean=[-1.0], std=[1.0],
        ...                                    top1_logprob=[-0.1], top1_id=[1], rank=[0])
        >>> found = attack_signals({"a": one(-0.5), "b": one(-0.7), "c": one(-2.0), "d": one(-3.0)},
        ...                        labels={"a": 1, "b": 1, "c": 0, "d": 0}, attacks=["loss"])
        >>> found.metrics["loss"].auc
        1.0
    """

    scores: Mapping[str, Mapping[str, float]]
    unscorable: Mapping[str, Mapping[str, str]]
    labels: Mapping[str, int]
    metrics: Mapping[str, Metrics]
    by_group: Mapping[str, Mapping[str, Metrics]] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)
    stacked: Stacked | None = None
    dataset: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def ids(self) -> list[str]:
        """All record ids, scored or not, in the order in which they were given."""
        seen = dict.fromkeys(self.tokens)
        for column in (*self.scores.values(), *self.unscorable.values()):
            seen.update(dict.fromkeys(column))
        seen.update(dict.fromkeys(self.labels))
        return list(seen)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain dictionaries, lists and numbers."""
        return {
            "metrics": {name: one.to_dict() for name, one in self.metrics.items()},
            "by_group": {
                name: {group: one.to_dict() for group, one in found.items()}
                for name, found in self.by_group.items()
            },
            "scores": {name: dict(column) for name, column in self.scores.items()},
            "unscorable": {name: dict(column) for name, column in self.unscorable.items() if column},
            "labels": dict(self.labels),
            "tokens": dict(self.tokens),
            "groups": dict(self.groups),
            "cost": self.cost.to_dict(),
            "stack": None if self.stacked is None else _without_scores(self.stacked),
            "dataset": None if self.dataset is None else dict(self.dataset),
            "settings": dict(self.settings),
            "notes": list(self.notes),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a record: id, label, source, tokens, and a column for each attack (None: unscorable)."""
        return [
            {
                "id": id,
                "label": self.labels.get(id),
                "source": self.groups.get(id),
                "tokens": self.tokens.get(id),
                **{name: column.get(id) for name, column in self.scores.items()},
            }
            for id in self.ids
        ]

    def to_pandas(self) -> Any:
        """Return :meth:`rows` as a pandas DataFrame indexed by id.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError("pandas", "dev", "AttackResult.to_pandas") from error
        return pandas.DataFrame(self.rows()).set_index("id")

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the ROC of every attack on log axes; write it where a path (.svg, .png, .pdf) is given.

        Returns:
            The matplotlib figure.

        Raises:
            ConfigurationError: there is no attack with metrics, or the path's ending is not known.
        """
        from memaudit.posthoc.membership.plots import roc_figure, save

        if not self.metrics:
            raise ConfigurationError(
                "there is nothing to plot: labels of members and of non-members are needed"
            )
        figure = roc_figure(self)
        if path is not None:
            save(figure, path)
        return figure

    def save(self, folder: str | Path) -> Path:
        """Write metrics, scores, plots and settings into a new folder named by the time; return it."""
        from memaudit.posthoc.membership.output import write

        return write(self, folder)


def _without_scores(stacked: Stacked) -> dict[str, Any]:
    found = asdict(stacked)
    del found["scores"]
    return found
