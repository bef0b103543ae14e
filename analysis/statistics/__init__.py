"""Estimates with intervals. Nothing in here knows about stores, studies or plotting."""
