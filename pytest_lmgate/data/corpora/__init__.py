"""Datasets: their rows, from where they are, and what is made of a row's columns: prompts and tags."""
