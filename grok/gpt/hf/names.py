"""Our tensors' names in a Hugging Face form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    """What a form calls our modules."""

    outside: Mapping[str, str]
    """The modules outside the blocks."""
    blocks: str
    """The form's list of blocks."""
    inside: Mapping[str, str]
    """The modules of a block."""

    def of(self, name: str) -> str:
        """Return the form's name of our tensor ``name``.

        >>> Names({"head": "lm_head"}, "h", {"mlp.up": "c_fc"}).of("blocks.3.mlp.up.bias")
        'h.3.c_fc.bias'
        """
        module, _, kind = name.rpartition(".")
        if module in self.outside:
            return f"{self.outside[module]}.{kind}"
        _, layer, part = module.split(".", 2)
        return f"{self.blocks}.{layer}.{self.inside[part]}.{kind}"
