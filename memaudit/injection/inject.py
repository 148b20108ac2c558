"""``inject()``: the one door to every container of rows."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memaudit.canaries.tokens import TokenizerLike, check_tokenizer
from memaudit.errors import InjectionError, InputTypeError
from memaudit.injection import datasets_hf as hf
from memaudit.injection.duplicates import SecretWatch, strings
from memaudit.injection.formats import detect
from memaudit.injection.placement import SPREAD, Planted, Row, merge, plant, positions
from memaudit.injection.share import SAMPLE, share_warnings, token_share
from memaudit.manifest import CanarySet, Manifest
from memaudit.seeds import generator


def inject(
    dataset: Any,
    canaries: CanarySet,
    fmt: str = "auto",
    seed: int = 0,
    *,
    tokenizer: TokenizerLike | None = None,
    columns: Mapping[str, str] | None = None,
    fill: Mapping[str, Any] | None = None,
    split: str = "train",
    n_rows: int | None = None,
    attribute: str | None = None,
    output: str | os.PathLike[str] | None = None,
) -> tuple[Any, Manifest]:
    """Plant the included canaries in training data, before the trainer tokenises it.

    Each included canary adds as many rows as it has repetitions, at seeded places; the original rows, their order
    and the columns' types stay as they were. The secret lies on the side that is trained on.

    Args:
        dataset: a Dataset, DatasetDict, IterableDataset, list of mappings, map-style dataset of mappings,
            path of a JSONL, CSV or Parquet file, or LightningDataModule.
        canaries: of :func:`memaudit.generate_canaries`.
        fmt: auto, text, prompt_completion, messages, sharegpt, alpaca, preference or input_ids.
        seed: of the places.
        tokenizer: checks that every secret keeps its ids in its record, and counts tokens. Needed for input_ids.
        columns: which column plays a role of the format, as ``{"text": "body"}``.
        fill: values of other columns in the added rows; those that are not named are None.
        split: of a DatasetDict.
        n_rows: length of a stream, exact or estimated. Without it the rows are spread over the first
            200 rows for each added one, and what a shorter stream leaves over comes at its end.
        attribute: of a LightningDataModule, the one that holds the training rows.
        output: where the new file of a path goes (default: beside it, with ``.memaudit`` in its name).

    Returns:
        The data with the canaries (for a file, the new path; for a LightningDataModule, itself), and the manifest:
        save it, it is the ground truth of the audit.

    Raises:
        InjectionError: no format fits, a secret stands in the data already or does not keep its ids.
        ManifestError: the tokenizer is not the canaries'.
        InputTypeError: a container that is not known.

    Example:
        >>> from memaudit.manifest import Canary, CanarySet, TokenizerIdentity
        >>> canary = Canary(id="c-0", family="random", generator="uniform_vocab", secret=" b c", secret_ids=(1, 2),
        ...                 role="candidate", repetitions=2, included=True)
        >>> given = CanarySet(seed=0, family="random", include_prob=0.5, repetitions=(2,), canaries=(canary,),
        ...                   tokenizer=TokenizerIdentity(name="t", vocab_size=3, fingerprint="f"))
        >>> rows, manifest = inject([{"text": "one"}, {"text": "two"}], given)
        >>> len(rows), manifest.n_inserted_rows, manifest.fmt
        (4, 2, 'text')
    """
    if not isinstance(canaries, CanarySet):
        raise InputTypeError(
            f"canaries is a {type(canaries).__name__}; expected the CanarySet that generate_canaries() returns"
        )
    if tokenizer is not None:
        check_tokenizer(canaries, tokenizer)
    job = Job(canaries, fmt, seed, tokenizer, dict(columns or {}), dict(fill or {}))
    if hf.kind(dataset) == "dict":
        return _into_dict(job, dataset, split, n_rows)
    if isinstance(dataset, (str, os.PathLike)):
        from memaudit.injection.files import into_file

        return into_file(job, Path(dataset), None if output is None else Path(output))
    if all(hasattr(dataset, name) for name in ("setup", "train_dataloader", "prepare_data")):
        from memaudit.injection.datamodule import into_datamodule

        return into_datamodule(job, dataset, attribute)
    return inject_rows(job, dataset, n_rows)


class Job:
    """What every container needs: the canaries, and how their records are to be made."""

    def __init__(
        self,
        canaries: CanarySet,
        fmt: str,
        seed: int,
        tokenizer: TokenizerLike | None,
        columns: dict[str, str],
        fill: dict[str, Any],
    ) -> None:
        self.canaries = canaries
        self.seed = seed
        self.tokenizer = tokenizer
        self.watch = SecretWatch(canaries)
        self._fmt = fmt
        self._columns = columns
        self._fill = fill

    def plant(
        self, sample: Sequence[Mapping[str, Any]], where: str
    ) -> tuple[Planted, str, dict[str, str], list[str]]:
        """Find the format by the first row, and build the records; return also format, columns and warnings.

        Raises:
            InjectionError: there is no row, or no format fits it.
        """
        if not sample:
            raise InjectionError(f"{where} holds no rows; canaries need data around them")
        if not isinstance(sample[0], Mapping):
            raise InjectionError(
                f"a row of {where} is a {type(sample[0]).__name__}; expected a mapping from columns to values"
            )
        form, columns, warnings = detect(sample[0], self._fmt, self._columns)
        planted = plant(
            self.canaries,
            form,
            sample[0],
            columns=columns,
            tokenizer=self.tokenizer,
            fill=self._fill,
            seed=self.seed,
        )
        return planted, form.name, columns, warnings

    def manifest(
        self,
        planted: Planted,
        fmt: str,
        columns: Mapping[str, str],
        warnings: Sequence[str],
        *,
        n_host: int | None,
        host_sample: Sequence[Mapping[str, Any]],
        fingerprint: str | None,
    ) -> Manifest:
        """Write down what was planted."""
        share = token_share(planted.rows, host_sample, n_host, fmt, columns, self.tokenizer)
        given = self.canaries
        return Manifest(
            seed=self.seed,
            fmt=fmt,
            include_prob=given.include_prob,
            repetitions=given.repetitions,
            family=given.family,
            profile=given.profile,
            tokenizer=given.tokenizer,
            canaries=planted.canaries,
            n_host_rows=n_host,
            n_inserted_rows=len(planted.rows),
            token_share=share,
            dataset_fingerprint=fingerprint,
            canary_set_sha256=given.content_hash(),
            warnings=(*given.notes, *warnings, *share_warnings(share)),
        )


def inject_rows(job: Job, rows: Any, n_rows: int | None = None) -> tuple[Any, Manifest]:
    """Plant in a Dataset, a stream, a list of mappings or a map-style dataset.

    Raises:
        InputTypeError: it is none of them.
    """
    found = hf.kind(rows)
    if found == "dataset":
        return _into_dataset(job, rows)
    if found == "stream":
        return _into_stream(job, rows, n_rows)
    if isinstance(rows, Sequence) or (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
        return _into_list(job, rows)
    raise InputTypeError(
        f"the data is a {type(rows).__name__}; expected a Dataset, DatasetDict, IterableDataset, list of rows, "
        "path of a JSONL, CSV or Parquet file, or LightningDataModule"
    )


def _into_dataset(job: Job, dataset: Any) -> tuple[Any, Manifest]:
    host_sample = hf.sample(dataset, job.seed, SAMPLE)
    first = [dict(dataset.with_format(None)[0])] if len(dataset) else []
    planted, fmt, columns, warnings = job.plant(first, "the dataset")
    job.watch.check(hf.texts(dataset))
    manifest = job.manifest(
        planted,
        fmt,
        columns,
        warnings,
        n_host=len(dataset),
        host_sample=host_sample,
        fingerprint=getattr(dataset, "_fingerprint", None),
    )
    return hf.add_rows(dataset, planted.rows, job.seed), manifest


def _into_dict(job: Job, splits: Any, split: str, n_rows: int | None) -> tuple[Any, Manifest]:
    if split not in splits:
        raise InjectionError(
            f"the dataset has no split {split!r}; name one of {', '.join(splits)} with split="
        )
    one = splits[split]
    changed, manifest = (
        _into_dataset(job, one) if hf.kind(one) == "dataset" else _into_stream(job, one, n_rows)
    )
    merged = type(splits)({name: changed if name == split else value for name, value in splits.items()})
    return merged, manifest


def _into_stream(job: Job, stream: Any, n_rows: int | None) -> tuple[Any, Manifest]:
    host_sample = hf.first_rows(stream, SAMPLE)
    planted, fmt, columns, warnings = job.plant(host_sample[:1], "the stream")
    known = n_rows if n_rows is not None else hf.stream_length(stream)
    spread = known if known is not None else SPREAD * len(planted.rows)
    manifest = job.manifest(
        planted, fmt, columns, warnings, n_host=known, host_sample=host_sample, fingerprint=None
    )
    return hf.add_to_stream(stream, planted.rows, spread, job.seed), manifest


def _into_list(job: Job, rows: Any) -> tuple[Any, Manifest]:
    size = len(rows)
    first = [rows[0]] if size else []
    planted, fmt, columns, warnings = job.plant(first, "the data")
    digest = hashlib.sha256()
    everything = [rows[index] for index in range(size)]
    for row in everything:
        digest.update(json.dumps(row, sort_keys=True, default=str).encode())
    job.watch.check(text for row in everything for text in strings(row))
    chosen = generator(job.seed, "sample").permutation(size)[:SAMPLE]
    manifest = job.manifest(
        planted,
        fmt,
        columns,
        warnings,
        n_host=size,
        host_sample=[everything[index] for index in chosen.tolist()],
        fingerprint=digest.hexdigest(),
    )
    places = positions(len(planted.rows), size, job.seed).tolist()
    added: list[Row] = [dict(row) for row in planted.rows]
    return list(merge(everything, added, places)), manifest
