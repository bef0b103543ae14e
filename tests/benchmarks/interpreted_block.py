"""Prints how far the interpreted kernels of a block are from the plain operation in float64, at odd sizes."""

from benchmarks.generated.pretence import pretend

CASES = (
    (("one", "left", "one", "right", "one"), ("one", "left", "left", "pair", "pair"), False, 3, 24, 70, True),
    (("one", "left", "one", "right", "one"), ("one", "left", "left", "pair", "pair"), True, 2, 12, 9, False),
    (("one", "left", "left", "pair", "pair"), ("one", "left", "left", "pair", "pair"), True, 4, 40, 33, True),
    (("right", "one", "left"), ("right", "right", "pair"), False, 1, 130, 48, False),
)
"""Each position's group before and after a block; whether it is the last; heads, widths; GELU and biases, or not."""

if __name__ == "__main__":
    pretend(interpreter=True)
    import torch

    from benchmarks.generated.interpreted import guarded
    from grok.arithmetic.gpu import block_kernels
    from grok.arithmetic.gpu.block import block
    from grok.arithmetic.gpu.lanes import StackedModel, group_rows
    from grok.arithmetic.rows import Batch, RowPlan
    from grok.config import load_config

    config, library = load_config({"mode": "arithmetic"}).model, torch.library.Library("grok", "IMPL")
    right: list[list[torch.Tensor]] = []
    worst = {torch.float64: 0.0, torch.float32: 0.0}
    for dtype in (None, *worst):  # first the plain operation
        draw = torch.Generator().manual_seed(0)
        a, b = torch.randint(7, (2, 40), generator=draw), torch.randint(5, (2, 40), generator=draw)
        for case, (own, prefix, last, heads, d, f, gelu) in enumerate(CASES):
            plan = RowPlan((0,) * len(own), own, prefix, range(7), range(5))
            table = StackedModel(config, plan, "ieee").table(own, Batch(a, b, a, a), last)
            before = sum(plan.sizes(0, 40))
            skipped = before - plan.sizes(0, 40)[-1] if last else 0
            shapes = [
                (before, d),
                (3 * d, d),
                (3 * d,),
                (d, d),
                (d,),
                (d,),
                (d,),
                (f, d),
                (f,),
                (d, f),
                (d,),
                (d,),
                (d,),
            ]
            shapes.append((table.shape[1], d))
            drawn = [0.3 * torch.randn(2, *shape, generator=draw, dtype=torch.float64) for shape in shapes]
            *given, grad = (t.to(dtype or torch.float64).requires_grad_() for t in drawn)
            x, qkv, qkv_bias, *rest = (None if i in (2, 4, 8, 10) and not gelu else t for i, t in enumerate(given))
            lists = group_rows(table[..., :-1].flatten(1), before)
            with guarded():
                y = block(
                    x, qkv, qkv_bias, skipped, table, *lists, *rest, not last or own != prefix, heads, gelu, "ieee"
                )
                leaves = [t for t in (x, qkv, qkv_bias, *rest) if t is not None]
                found = [y, *torch.autograd.grad(y, leaves, grad)]
            if dtype is None:
                right.append(found)
                continue
            for value, expected in zip(found, right[case], strict=True):
                difference = (value - expected).abs().max() / expected.abs().max()
                assert difference < 1  # nan is not
                worst[dtype] = max(worst[dtype], difference.item())
        if dtype is None:
            for name in ("block", "block_gradients"):
                library.impl(name, getattr(block_kernels, name), "CPU", allow_override=True)
    print(worst[torch.float32], worst[torch.float64])
