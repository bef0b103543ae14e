"""Estimates with intervals. Imports nothing of stores, studies or plotting."""
