"""Names, parameters, third parties."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from memaudit.attacks import Attack, View, canary_attacks, make, make_all, names, register, registry
from memaudit.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Lowest(Attack):
    """A third party's attack."""

    scale: float = 1.0

    name = "lowest_of_a_third_party"

    def score(self, view: View) -> float:
        return self.scale * float(view.signals.logprob.min())


def test_unknown_parameters_and_names_are_refused_with_a_hint() -> None:
    with pytest.raises(ConfigurationError, match=r"no parameter 'ration' \(did you mean 'ratio'\?\)"):
        make("mink", ration=0.1)
    with pytest.raises(ConfigurationError, match="did you mean 'minkpp'"):
        make("minkp")
    with pytest.raises(ConfigurationError, match="no parameter 'ratio'; it has: none"):
        make("loss", ratio=0.1)
    with pytest.raises(ConfigurationError, match=r"ratio must be in \(0, 1\]"):
        make("mink(ratio=0)")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        make("mink", ratio="a lot")
    with pytest.raises(ConfigurationError, match="write it as"):
        make("mink(0.1)")
    with pytest.raises(ConfigurationError, match="write it as"):
        make("mink(ratio=__import__('os'))")


def test_two_attacks_of_one_type_have_columns_of_their_own_and_equal_ones_are_refused() -> None:
    labels = [one.label for one in make_all(["mink", "mink(ratio=0.1)", make("mink", ratio=0.5)])]
    assert labels == ["mink", "mink(ratio=0.1)", "mink(ratio=0.5)"]
    with pytest.raises(ConfigurationError, match="twice"):
        make_all(["mink", "mink(ratio=0.2)"])
    with pytest.raises(ConfigurationError, match="no attack is named"):
        make_all([])


def test_every_name_makes_an_attack_that_names_its_source() -> None:
    for name in names():
        attack = make(name)
        assert attack.name == name and attack.label == name
        assert type(attack).__doc__
    assert all(make(name).source for name in registry._BUILT_IN)


def test_a_third_partys_attack_by_registration_and_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    register(Lowest)
    register(Lowest)  # twice is the same class
    assert make("lowest_of_a_third_party(scale=2.0)").label == "lowest_of_a_third_party(scale=2.0)"
    assert "lowest_of_a_third_party" in canary_attacks(reference=False)
    with pytest.raises(ConfigurationError, match="taken"):
        register(type("Loss", (Lowest,), {"name": "loss"}))
    monkeypatch.setattr(registry, "_registered", {})
    entries = [
        EntryPoint("lowest_of_a_third_party", f"{__name__}:Lowest", registry.GROUP),
        EntryPoint("broken", "no_such_module:X", registry.GROUP),
        EntryPoint("no_attack", "pathlib:Path", registry.GROUP),
    ]

    def found(*, group: str, name: str | None = None) -> list[EntryPoint]:
        return [one for one in entries if one.group == group and name in (None, one.name)]

    monkeypatch.setattr(registry, "entry_points", found)
    assert names()[-3:] == ["broken", "lowest_of_a_third_party", "no_attack"]
    assert isinstance(make("lowest_of_a_third_party"), Attack)
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        make("broken")
    with pytest.raises(ConfigurationError, match="does not derive"):
        make("no_attack")
