"""The values that callers give: what no provider could carry out is refused where it is written down."""

from __future__ import annotations

import json
import types
import typing
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from grader.campaign import Conditions, Limits, RewardPolicy
from sandbox import KubernetesConfig, SandboxSpec
from sandbox.config import PacingConfig, PhaseBudgets

MODELS: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (SandboxSpec, {"image": "host"}),
    (KubernetesConfig, {}),
    (PacingConfig, {}),
    (PhaseBudgets, {}),
    (Conditions, {}),
    (Limits, {}),
    (RewardPolicy, {}),
]


def floats(model: type[BaseModel]) -> list[str]:
    """Names of the fields that take a number with a fraction."""
    return [name for name, hint in typing.get_type_hints(model).items() if float in _parts(hint)]


def _parts(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN"])
@pytest.mark.parametrize(("model", "needed"), MODELS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_number_without_end_is_refused(model: type[BaseModel], needed: dict[str, Any], number: str) -> None:
    """Every float of every setting: TOML and JSON readers give `inf` and `nan`, and no deadline can be made of them."""
    names = floats(model)
    assert names

    for name in names:
        with pytest.raises(ValidationError, match=name):
            model.model_validate({**needed, name: json.loads(number)})
