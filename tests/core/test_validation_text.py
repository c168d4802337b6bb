"""Values that do not validate, in words."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel, ValidationError

from clew.core.validation_text import validation_text


class Cut(BaseModel):
    kind: Literal["median", "band"]


@pytest.mark.parametrize(
    ("given", "end"),
    [("medin", "'median' or 'band'; did you mean 'median'?"), ("xyz", "'median' or 'band'"), (3, "'median' or 'band'")],
)
def test_a_choice_that_nearly_fits_is_suggested(given: object, end: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Cut.model_validate({"kind": given})
    assert validation_text(raised.value.errors()[0]) == f"Input should be {end}"
