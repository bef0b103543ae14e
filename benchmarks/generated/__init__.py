"""The CUDA code that the compiler generates for a step of stacked lanes, made and examined without a device.

Inductor and Triton need only a device's properties: ``pretence`` gives them those of an H200. ``graphs`` generates the
code of the real step. ``count`` counts its kernels, operations and bytes, and compiles every kernel to machine code.
``interpreted`` runs the generated step in Triton's interpreter and compares it with the uncompiled step; meanwhile it
makes reads outside masks visible.

All of this needs the CUDA build of torch (``make cuda-environment``): ``python -m benchmarks.generated --help``.
"""
