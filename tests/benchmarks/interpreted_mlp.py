"""Prints how far the interpreted kernels of the MLP are from the plain operation in float64, at odd sizes."""

from benchmarks.generated.pretence import pretend

if __name__ == "__main__":
    pretend(interpreter=True)
    import torch

    from benchmarks.generated.guarded import guarded
    from grok.arithmetic.gpu import mlp, mlp_kernels

    draw, worst = torch.Generator().manual_seed(0), {torch.float32: 0.0, torch.float64: 0.0}
    for rows, width, wide, gelu in ((70, 24, 70, True), (150, 40, 33, False), (9, 130, 48, True)):
        shapes = [(rows, width), (wide, width), (wide,), (width, wide), (width,), (width,), (width,)]
        given = [torch.randn(2, *shape, generator=draw, dtype=torch.float64) for shape in shapes]
        if not gelu:
            given[2] = given[4] = None
        for dtype in worst:
            low = [None if t is None else t.to(dtype) for t in given]
            with guarded():
                found = [*mlp_kernels.mlp(*low, gelu, "ieee")]
                found += mlp_kernels.mlp_gradients(low[0].flip(1).contiguous(), *low[:4], gelu, "ieee")
            right = [*mlp._mlp(*given, gelu, ""), *mlp._mlp_gradients(given[0].flip(1), *given[:4], gelu, "")]
            differences = [((x - y).abs().max() / y.abs().max()).item() for x, y in zip(found, right, strict=True)]
            assert sum(differences) < 1, differences  # nan is not
            worst[dtype] = max(worst[dtype], *differences)
    print(*worst.values())
