"""The CUDA code that the compiler generates for a step of stacked lanes, made and examined without a device.

Inductor and Triton need to know a device, not to have one: ``pretence`` tells them of an H200. ``graphs`` generates
the code of the real step, ``count`` says how many kernels, operations and bytes are in it, ``cubins`` compiles every
kernel to machine code, ``interpreted`` runs the generated step in Triton's interpreter beside the uncompiled one, held
to memory that it may read by ``guarded`` (``faulty`` shows that it is),
``paths`` runs what is not compiled on tensors without data.

All of it needs the CUDA build of torch (``make cuda-environment``): ``python -m benchmarks.generated --help``.
"""
