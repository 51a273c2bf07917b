"""What is not on a gate's way: a folder a tool, with its command, its work and its words. Nothing imports it.

`parts` is no tool: it holds what several tools share.
"""
