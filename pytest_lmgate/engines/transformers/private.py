"""What copies of a model use of torch that it keeps private, tried with torch 2.13: a module's own tables."""

from __future__ import annotations

import copy

from torch import nn


def shallow_copy(module: nn.Module) -> nn.Module:
    """Copy a module that shares its tensors and submodules, and may get other submodules and hooks of its own."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    other._forward_pre_hooks = copy.copy(module._forward_pre_hooks)
    other._forward_pre_hooks_with_kwargs = copy.copy(module._forward_pre_hooks_with_kwargs)
    return other
