"""Text sampled at an evaluation. It uses the sample stream at that step, so it cannot change training."""

from __future__ import annotations

from grok.config.gpt import EvalConfig
from grok.errors import DataError
from grok.gpt.generate import Sampler, generate
from grok.gpt.model import GPT
from grok.streams import Stream
from grok.text.tokenizers import Tokenizer


def sample_text(model: GPT, tokenizer: Tokenizer, config: EvalConfig, *, stream: Stream) -> str:
    """Return ``config.prompt`` and up to ``sample_tokens`` tokens sampled after it; ``stream`` is at the step."""
    prompt = known_prompt(tokenizer, config.prompt)
    (sample,) = generate(
        model,
        [prompt],
        tokens=config.sample_tokens,
        sampler=Sampler(temperature=config.temperature, top_k=config.top_k),
        seed=stream.seed64(),
        eot_id=tokenizer.eot_id,
        vocab_size=tokenizer.vocab_size,  # the model may have more ids than the tokeniser
    )
    return tokenizer.decode([*prompt, *sample.ids])


def known_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the prompt's tokens or, if this tokeniser cannot encode the prompt, one token to start from."""
    try:
        tokens = [int(i) for i in tokenizer.encode(prompt)]
    except DataError:  # a character outside the tokeniser's vocabulary
        tokens = []
    return tokens or [tokenizer.eot_id or 0]


def replaced_prompt(tokenizer: Tokenizer, prompt: str) -> str | None:
    """Return the text that replaces a prompt that this tokeniser cannot encode, or None."""
    try:
        tokenizer.encode(prompt)
    except DataError:
        return tokenizer.decode(known_prompt(tokenizer, prompt))
    return None
