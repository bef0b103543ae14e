"""Answers to questions about a store, each number with its interval. Trains nothing and imports no torch.

``statistics`` computes estimates. Each module of ``studies`` selects the runs of one question and answers
it. ``figures`` draws the answers. ``report`` writes the page.
"""
