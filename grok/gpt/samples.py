"""Text sampled at an evaluation, from the sample stream at that step: looking at a run never moves it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from grok.config.gpt import EvalConfig
from grok.errors import DataError
from grok.gpt.model import GPT
from grok.gpt.tokenizers import Tokenizer
from grok.streams import Stream


@torch.no_grad()
def sample_text(model: GPT, tokenizer: Tokenizer, config: EvalConfig, *, stream: Stream) -> str:
    """Return ``config.prompt`` and the text sampled after it, ``config.sample_tokens`` tokens long.

    Ends at the end-of-text token, or where learned positions end. ``stream`` is at the step.
    """
    prompt = known_prompt(tokenizer, config.prompt)
    room = model.config.context if model.config.positions == "learned" else len(prompt) + config.sample_tokens
    count = min(config.sample_tokens, room - len(prompt))
    if count < 1:
        return tokenizer.decode(prompt)
    device = model.token_embedding.weight.device
    cache, tokens = model.new_cache(1, len(prompt) + count), list(prompt)
    ahead = torch.tensor([prompt], device=device)
    for chance in stream.uniform(count):
        logits = model(ahead, cache=cache)[0, -1, : tokenizer.vocab_size].double().cpu().numpy()
        token = choose(logits, float(chance), temperature=config.temperature, top_k=config.top_k)
        if token == tokenizer.eot_id:
            break
        tokens.append(token)
        ahead = torch.tensor([[token]], device=device)
    return tokenizer.decode(tokens)


def known_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the prompt's tokens, or one token to start from where this tokeniser cannot say the prompt."""
    try:
        tokens = tokenizer.encode(prompt).tolist()
    except DataError:  # a character that the corpus never had
        tokens = []
    return tokens or [tokenizer.eot_id or 0]


def choose(logits: NDArray[np.float64], chance: float, *, temperature: float, top_k: int | None) -> int:
    """Return the token at quantile ``chance`` in (0, 1) of the softmax of the ``top_k`` likeliest ``logits`` [V]."""
    if temperature == 0:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")[:top_k]
    weights = np.exp((logits[order] - logits[order[0]]) / temperature)
    cumulative = weights.cumsum()
    return int(order[np.searchsorted(cumulative, chance * cumulative[-1])])
