"""Our tensors' names in a Hugging Face form."""

from __future__ import annotations

from collections.abc import Mapping


def name_in_form(name: str, outside: Mapping[str, str], blocks: str, inside: Mapping[str, str]) -> str:
    """Return the form's name of our tensor ``name``.

    ``outside`` renames the tensors outside the blocks, ``inside`` a block's modules; ``blocks`` is the form's list of
    blocks.
    """
    if name in outside:
        return outside[name]
    _, layer, rest = name.split(".", 2)
    module, _, kind = rest.rpartition(".")
    return f"{blocks}.{layer}.{inside[module]}.{kind}"
