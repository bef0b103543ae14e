"""The letters of every axis, once, for the whole project.

====== ==================================================================
letter axis
====== ==================================================================
L      lanes: independent training runs side by side
B      batch: examples of one mini-batch
T      tokens: positions of one sequence
R      rows: distinct (prefix, position) activations of a row plan
D      model width
H      heads
K      width of one head, ``D / H``
F      inner width of the MLP
V      vocabulary
====== ==================================================================

A tensor is named with its axes where that helps (``scores_bht``). Shape comments
use the letters: ``x  # [L, R, D]``.
"""
