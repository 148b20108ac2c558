"""Containers: rows are added, nothing else changes; streams take constant memory and count each row once."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch

from memaudit import generate_canaries, inject
from memaudit.errors import InjectionError, InputTypeError
from memaudit.manifest import CanarySet, Manifest
from tests.helpers import sample_text, tiny_tokenizer

TEXTS = sample_text(60, seed=3)
FEATURES = datasets.Features(
    {
        "id": datasets.Value("int16"),
        "text": datasets.Value("large_string"),
        "kind": datasets.ClassLabel(names=["a", "b"]),
        "scores": datasets.List(datasets.Value("float32")),
        "nested": {"x": datasets.Value("uint8"), "y": datasets.List({"z": datasets.Value("string")})},
        "blob": datasets.Value("binary"),
        "when": datasets.Value("timestamp[us]"),
    }
)


def host_rows(count: int = 60) -> list[dict[str, Any]]:
    return [
        {
            "id": index,
            "text": TEXTS[index % len(TEXTS)] + f" {index}",
            "kind": index % 2,
            "scores": [0.5, index],
            "nested": {"x": index % 7, "y": [{"z": "q"}]},
            "blob": b"\x00\xff",
            "when": None,
        }
        for index in range(count)
    ]


@pytest.fixture(scope="module")
def canaries() -> CanarySet:
    return generate_canaries(tiny_tokenizer(), n=12, n_controls=6, family="random", repetitions=(1, 4))


def secrets_in(texts: list[str], manifest: Manifest) -> Counter[str]:
    return Counter(c.id for text in texts for c in manifest.canaries if c.secret in text)


def check(texts: list[str], host: list[str], manifest: Manifest) -> None:
    """The host's texts are all there in their order, and each member as often as it is repeated."""
    expected = {canary.id: canary.repetitions for canary in manifest.members}
    assert dict(secrets_in(texts, manifest)) == expected and expected
    assert manifest.n_inserted_rows == sum(expected.values())
    assert [text for text in texts if not any(c.secret in text for c in manifest.members)] == host


def test_dataset_keeps_features_format_and_rows(canaries: CanarySet) -> None:
    host = datasets.Dataset.from_list(host_rows(), features=FEATURES)
    injected, manifest = inject(host, canaries, tokenizer=tiny_tokenizer())
    assert injected.features == FEATURES
    assert len(injected) == len(host) + manifest.n_inserted_rows
    kept = [row for row in injected if not any(c.secret in row["text"] for c in manifest.members)]
    assert kept == list(host)
    check(list(injected["text"]), list(host["text"]), manifest)
    assert manifest.n_host_rows == 60 and manifest.dataset_fingerprint == host._fingerprint
    assert manifest.canary_set_sha256 == canaries.content_hash()
    added = next(row for row in injected if manifest.members[0].secret in row["text"])
    assert added["id"] is None and added["scores"] in (None, [])


def test_dataset_format_and_selection_survive(canaries: CanarySet) -> None:
    host = datasets.Dataset.from_list(host_rows(), features=FEATURES).select(range(50, 10, -1))
    host = host.with_format("numpy", columns=["text", "scores"])
    injected, manifest = inject(host, canaries, fill={"scores": [0.0]})
    assert injected.format["type"] == "numpy" and injected.format["columns"] == ["text", "scores"]
    check([str(text) for text in injected["text"]], [str(text) for text in host["text"]], manifest)


def test_places_are_seeded_and_spread(canaries: CanarySet) -> None:
    host = datasets.Dataset.from_list(host_rows(1000), features=FEATURES)
    first, manifest = inject(host, canaries, seed=1)
    again, same = inject(host, canaries, seed=1)
    other, _ = inject(host, canaries, seed=2)
    assert list(first["text"]) == list(again["text"]) and manifest == same
    assert list(first["text"]) != list(other["text"])
    at = np.array(
        [i for i, text in enumerate(first["text"]) if any(c.secret in text for c in manifest.members)]
    )
    assert at.min() < 350 and at.max() > 650  # neither all in front nor all at the end


def test_list_and_map_style(canaries: CanarySet) -> None:
    host = host_rows()
    injected, manifest = inject(host, canaries)
    check([row["text"] for row in injected], [row["text"] for row in host], manifest)
    assert [row for row in injected if row in host] == host
    assert len({id(row) for row in injected}) == len(injected)  # no two rows are one object

    class MapStyle(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(host)

        def __getitem__(self, index: int) -> dict[str, Any]:
            return host[index]

    mapped, same = inject(MapStyle(), canaries)
    assert mapped == injected and same == manifest


def test_dataset_dict(canaries: CanarySet) -> None:
    host = datasets.Dataset.from_list(host_rows(), features=FEATURES)
    both = datasets.DatasetDict({"train": host, "test": host})
    injected, manifest = inject(both, canaries)
    assert isinstance(injected, datasets.DatasetDict)
    check(list(injected["train"]["text"]), list(host["text"]), manifest)
    assert injected["test"] is host
    with pytest.raises(InjectionError, match="name one of train, test"):
        inject(both, canaries, split="validation")


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("length", [None, 60, 600])
def test_stream(canaries: CanarySet, shards: int, length: int | None) -> None:
    host = datasets.Dataset.from_list(host_rows(), features=FEATURES).to_iterable_dataset(num_shards=shards)
    injected, manifest = inject(host, canaries, n_rows=length, tokenizer=tiny_tokenizer())
    assert isinstance(injected, datasets.IterableDataset) and injected.features == FEATURES
    texts = [row["text"] for row in injected]
    check(texts, [row["text"] for row in host], manifest)
    assert texts == [row["text"] for row in injected]  # the second epoch is the first one
    assert manifest.n_host_rows == length
    assert (manifest.token_share is None) == (length is None)


def test_stream_divided_among_workers_counts_each_row_once(canaries: CanarySet) -> None:
    host = datasets.Dataset.from_list(host_rows(), features=FEATURES).to_iterable_dataset(num_shards=4)
    injected, manifest = inject(host, canaries, n_rows=60)
    texts = injected.select_columns(["text"])
    loader = torch.utils.data.DataLoader(texts, batch_size=None, num_workers=2)
    seen = [row["text"] for row in loader]
    assert dict(secrets_in(seen, manifest)) == {c.id: c.repetitions for c in manifest.members}
    assert len(seen) == 60 + manifest.n_inserted_rows


def test_stream_divided_among_nodes_counts_each_row_once(canaries: CanarySet) -> None:
    from datasets.distributed import split_dataset_by_node

    host = datasets.Dataset.from_list(host_rows(), features=FEATURES).to_iterable_dataset(num_shards=4)
    injected, manifest = inject(host, canaries, n_rows=60)
    for world in (2, 3):  # two divide the shards, three take turns
        parts = [split_dataset_by_node(injected, rank=rank, world_size=world) for rank in range(world)]
        seen = [row["text"] for part in parts for row in part]
        assert dict(secrets_in(seen, manifest)) == {c.id: c.repetitions for c in manifest.members}


@pytest.mark.slow
def test_a_million_rows_in_constant_memory() -> None:
    script = textwrap.dedent(
        """
        import resource
        import datasets
        from memaudit import generate_canaries, inject
        from tests.helpers import tiny_tokenizer

        def rows():
            for index in range(1_000_000):
                yield {"text": "row %d of the stream" % index}

        canaries = generate_canaries(tiny_tokenizer(), n=12, n_controls=4, family="random")
        stream = datasets.IterableDataset.from_generator(rows)
        injected, manifest = inject(stream, canaries, n_rows=1_000_000)
        reader = iter(injected)
        for _ in range(10_000):
            next(reader)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        count = 10_000 + sum(1 for _ in reader)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert count == 1_000_000 + manifest.n_inserted_rows, count
        print((after - before) / 1024)
        """
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.split()[-1]) < 20.0  # MiB; a million rows held at once are some 300


def test_the_order_of_ten_thousand_stream_rows_spreads_the_canaries(canaries: CanarySet) -> None:
    def rows() -> Any:
        for index in range(10_000):
            yield {"text": f"row {index}"}

    injected, manifest = inject(datasets.IterableDataset.from_generator(rows), canaries, n_rows=10_000)
    at = [i for i, row in enumerate(injected) if not row["text"].startswith("row")]
    assert len(at) == manifest.n_inserted_rows and min(at) < 4000 and max(at) > 6000


def test_fill_gives_other_columns_values(canaries: CanarySet) -> None:
    injected, manifest = inject(host_rows(), canaries, fill={"kind": 1})
    added = [row for row in injected if any(c.secret in row["text"] for c in manifest.members)]
    assert {row["kind"] for row in added} == {1}
    with pytest.raises(InjectionError, match="fill names the column 'colour'"):
        inject(host_rows(), canaries, fill={"colour": 1})


def test_token_share_is_right_and_warned_about(canaries: CanarySet) -> None:
    tokenizer = tiny_tokenizer()
    host = [{"text": text} for text in TEXTS]
    injected, manifest = inject(host, canaries, tokenizer=tokenizer)
    sizes = [len(tokenizer(row["text"])["input_ids"]) for row in injected]
    added = sum(
        size
        for size, row in zip(sizes, injected, strict=True)
        if any(c.secret in row["text"] for c in manifest.members)
    )
    assert manifest.token_share == pytest.approx(added / sum(sizes))
    assert any("above the limit of 1%" in warning for warning in manifest.warnings)
    _, large = inject(host * 40, canaries, tokenizer=tokenizer)
    assert any("above the target of 0.1%" in warning for warning in large.warnings)
    _, larger = inject(host * 1000, canaries, tokenizer=tokenizer)
    assert larger.token_share is not None and larger.token_share < 0.001
    assert not any("of the tokens" in warning for warning in larger.warnings)


@pytest.mark.parametrize("container", ["list", "dataset"])
def test_a_secret_that_stands_in_the_data_already(canaries: CanarySet, container: str) -> None:
    host = [{"text": text, "more": [{"deep": "x"}]} for text in TEXTS]
    held_out = next(canary for canary in canaries if not canary.included)
    host[7]["more"] = [{"deep": "before" + held_out.secret + " after"}]
    data: Any = host if container == "list" else datasets.Dataset.from_list(host)
    with pytest.raises(InjectionError, match="stands in the data already") as caught:
        inject(data, canaries)
    assert held_out.id in str(caught.value) and held_out.secret.strip() not in str(caught.value)


def test_injecting_twice_is_refused(canaries: CanarySet) -> None:
    once, _ = inject(host_rows(), canaries)
    with pytest.raises(InjectionError, match="stands in the data already"):
        inject(once, canaries)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ([], "holds no rows"),
        ([1, 2], "a row of the data is a int"),
        ([{"colour": "red"}], "no record format fits the columns colour"),
        ([{"text": None}], "no record format fits"),
    ],
)
def test_data_that_cannot_be_used(canaries: CanarySet, data: Any, what: str) -> None:
    with pytest.raises(InjectionError, match=what):
        inject(data, canaries)


def test_containers_that_are_not_known(canaries: CanarySet) -> None:
    with pytest.raises(InputTypeError, match="expected a Dataset, DatasetDict"):
        inject(iter([{"text": "a"}]), canaries)
    with pytest.raises(InputTypeError, match="expected the CanarySet"):
        inject(host_rows(), list(canaries))  # type: ignore[arg-type]


def test_an_empty_dataset(canaries: CanarySet) -> None:
    with pytest.raises(InjectionError, match="holds no rows"):
        inject(datasets.Dataset.from_dict({"text": []}), canaries)


def test_near_duplicates_are_planted_once_each() -> None:
    tokenizer = tiny_tokenizer()
    made = generate_canaries(tokenizer, n=8, n_controls=4, family="near_duplicate", repetitions=(4,))
    injected, manifest = inject(host_rows(), made, tokenizer=tokenizer)
    for canary in manifest.members:
        texts = [row["text"] for row in injected]
        assert sum(canary.secret in text for text in texts) == 1
        assert [sum(variant in text for text in texts) for variant in canary.variants] == [1, 1, 1]
    assert manifest.n_inserted_rows == 4 * len(manifest.members)


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Map-style rows for a data module."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def data_module(make: Any, attribute: str = "train_dataset") -> Any:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningDataModule):  # type: ignore[misc,name-defined]
        def setup(self, stage: str) -> None:
            setattr(self, attribute, make())

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(getattr(self, attribute), batch_size=4, collate_fn=list)

    return Module()


@pytest.mark.parametrize("made", ["map", "dataset", "dict"])
def test_lightning_data_module(canaries: CanarySet, made: str) -> None:
    host = [{"text": text} for text in TEXTS]
    makers: dict[str, Any] = {
        "map": lambda: Rows(host),
        "dataset": lambda: datasets.Dataset.from_list(host),
        "dict": lambda: {"train": datasets.Dataset.from_list(host)},
    }
    module = data_module(makers[made], "dataset" if made == "dict" else "train_dataset")
    changed, manifest = inject(module, canaries)
    assert changed is module
    first = None
    for _ in range(2):  # Lightning calls setup itself, again on every rank
        module.setup("fit")
        held = module.dataset["train"] if made == "dict" else module.train_dataset
        texts = [held[index]["text"] for index in range(len(held))]
        check(texts, TEXTS, manifest)
        assert first in (None, texts)
        first = texts


def test_lightning_data_module_that_keeps_its_rows(canaries: CanarySet) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningDataModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.train_dataset = Rows([{"text": text} for text in TEXTS])

        def setup(self, stage: str) -> None:
            pass

    module = Module()
    _, manifest = inject(module, canaries)
    module.setup("fit")
    check([row["text"] for row in module.train_dataset], TEXTS, manifest)


def test_lightning_data_module_whose_rows_are_not_found(canaries: CanarySet) -> None:
    module = data_module(lambda: Rows([{"text": text} for text in TEXTS]), "somewhere")
    with pytest.raises(InjectionError, match="name it with attribute="):
        inject(module, canaries)
    _, manifest = inject(module, canaries, attribute="somewhere")
    check([row["text"] for row in module.somewhere], TEXTS, manifest)
