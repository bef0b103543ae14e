"""Prints how far the interpreted kernels are from the plain operations in float64, at odd sizes."""

from benchmarks.generated.pretence import pretend

CASES = (
    (("one", "left", "one", "right", "one"), ("one", "left", "left", "pair", "pair"), False, 3, 24, 70, True),
    (("one", "left", "one", "right", "one"), ("one", "left", "left", "pair", "pair"), True, 2, 12, 9, False),
    (("one", "left", "left", "pair", "pair"), ("one", "left", "left", "pair", "pair"), True, 4, 40, 33, True),
    (("right", "one", "left"), ("right", "right", "pair"), False, 1, 130, 48, False),
)
"""Each position's group before and after a block; whether it is the last; heads, widths; GELU and biases, or not."""
HEADS = ((24, 31, True), (130, 234, True), (12, 5, False), (40, 70, False))
"""Widths, vocabularies; a norm and a bias, or neither, and whole numbers: then some rows have equal logits."""

if __name__ == "__main__":
    pretend(interpreter=True)
    import torch

    from benchmarks.generated.interpreted import guarded
    from grok.arithmetic.gpu import block_kernels
    from grok.arithmetic.gpu.block import OPERATIONS, block, head
    from grok.arithmetic.gpu.lanes import StackedModel, group_rows
    from grok.arithmetic.rows import Batch, RowPlan
    from grok.config import load_config

    config, library = load_config({"mode": "arithmetic"}).model, torch.library.Library("grok", "IMPL")
    right: list[list[torch.Tensor]] = []
    worst = {torch.float64: 0.0, torch.float32: 0.0}
    for dtype in (None, *worst):  # first the plain operations
        draw, every = torch.Generator().manual_seed(0), []
        a, b = torch.randint(7, (2, 40), generator=draw), torch.randint(5, (2, 40), generator=draw)
        with guarded():
            for own, prefix, last, heads, d, f, gelu in CASES:
                plan = RowPlan((0,) * len(own), own, prefix, range(7), range(5))
                table = StackedModel(config, plan, "ieee").table(own, Batch(a, b, a, a), last)
                before = sum(plan.sizes(0, 40))
                skipped = before - plan.sizes(0, 40)[-1] if last else 0
                shapes = [(before, d), (3 * d, d), (3 * d,), (d, d), *[(d,)] * 3, (f, d), (f,), (d, f), *[(d,)] * 3]
                drawn = [0.3 * torch.randn(2, *shape, generator=draw) for shape in shapes]
                given = [t.to(dtype or torch.float64).requires_grad_() for t in drawn]
                x, qkv, qkv_bias, *rest = (None if i in (2, 4, 8, 10) and not gelu else t for i, t in enumerate(given))
                lists = group_rows(table[..., :-1].flatten(1), before)
                how = not last or own != prefix, heads, gelu, "ieee"
                every.append((given, [block(x, qkv, qkv_bias, skipped, table, *lists, *rest, *how)]))
            for d, words, whole in HEADS:
                answer = torch.randint(words, (2, 40), generator=draw)
                shapes = [(40, d), (d,), (d,), (words, d), (words,)]
                drawn = [torch.randn(2, *shape, generator=draw) for shape in shapes]
                given = [(0.3 * t if whole else t.round()).to(dtype or torch.float64).requires_grad_() for t in drawn]
                arguments = (None if i in (1, 2, 4) and not whole else t for i, t in enumerate(given))
                every.append((given, [*head(*arguments, answer, "ieee")]))
            for case, (given, results) in enumerate(every):
                grad = torch.randn(results[0].shape, generator=draw).to(results[0].dtype)
                found = [*results, *torch.autograd.grad(results[0], given, grad, materialize_grads=True)]
                if dtype is None:
                    right.append(found)
                    continue
                for value, expected in zip(found, right[case], strict=True):
                    difference = (value - expected).abs().max() / expected.abs().max().clamp(min=1e-300)
                    assert difference < 1  # nan is not
                    worst[dtype] = max(worst[dtype], difference.item())
        if dtype is None:
            for name in OPERATIONS:
                library.impl(name, getattr(block_kernels, name), "CPU", allow_override=True)
    assert any(found[1].any() for found in right[-len(HEADS) :]), "some answers are right"
    print(worst[torch.float32], worst[torch.float64])
