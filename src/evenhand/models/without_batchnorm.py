"""GroupNorm in place of BatchNorm."""

from __future__ import annotations

import copy
import logging

import torch
from torch import nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from evenhand.errors import require_kind, require_whole

log = logging.getLogger(__name__)

CHANNELS = 16  # of a group, as in Wu and He, Group Normalization (ECCV 2018)


def without_batchnorm(net: nn.Module, groups: int | None = None) -> nn.Module:
    """Return a copy of a network with GroupNorm in place of every BatchNorm layer.

    GroupNorm normalises each sample by itself, so it has no statistics that clients would have to
    share. Scales and offsets are kept. A pretrained network computes something else afterwards, so
    it needs some training; the log says how many layers were replaced.

    >>> from torch import nn
    >>> without_batchnorm(nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64)))[1].num_groups
    4

    Args:
        net: the network; it stays as it is.
        groups: groups of channels in a layer. A layer gets the largest number up to this that
            divides its channels and leaves at least two in a group. By default groups have at least
            16 channels, and smaller layers have one group.
    """
    require_kind("net", net, nn.Module, "nn.Sequential(...)")
    require_whole("groups", groups, 1, optional=True)
    found = {name: layer for name, layer in net.named_modules() if isinstance(layer, _BatchNorm)}
    for name, layer in found.items():
        _refuse(name or "itself", layer)
    twin = copy.deepcopy(net)
    places = dict(twin.named_modules(remove_duplicate=False))
    new = {id(places[name]): _group_norm(layer, groups) for name, layer in found.items()}
    for part in list(places.values()):
        for name, child in list(part._modules.items()):
            if id(child) in new:
                setattr(part, name, new[id(child)])
    _report(list(found.values()), list(new.values()))
    return new.get(id(twin), twin)


def _refuse(name: str, layer: _BatchNorm) -> None:
    """Raise a ValueError if GroupNorm cannot stand in for a layer."""
    what = f"layer {name!r} ({type(layer).__name__})"
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
        raise ValueError(f"{what} has no shape yet; call the network once on a sample")
    if type(layer).forward not in (_BatchNorm.forward, SyncBatchNorm.forward):
        raise ValueError(f"{what} has a forward of its own and may do more; replace it by hand")
    if layer.num_features == 1 and isinstance(layer, nn.BatchNorm1d):
        raise ValueError(
            f"{what} has one channel, which GroupNorm would make constant; remove the layer"
        )


def _group_norm(layer: _BatchNorm, groups: int | None) -> nn.GroupNorm:
    """Return GroupNorm with a layer's scale, offset and mode."""
    channels = layer.num_features
    fits = [g for g in range(1, channels + 1) if channels % g == 0]
    least, most = (CHANNELS, channels) if groups is None else (2, groups)
    number = max((g for g in fits if g <= most and channels // g >= least), default=1)
    norm = nn.GroupNorm(number, channels, layer.eps, layer.affine)
    if layer.affine:
        norm.weight, norm.bias = copy.deepcopy(layer.weight), copy.deepcopy(layer.bias)
    return norm.train(layer.training)


def _report(old: list[_BatchNorm], new: list[nn.GroupNorm]) -> None:
    """Log what was replaced, and whether statistics of earlier training are lost.

    These are warnings because Python shows no other logs unless it is told to.
    """
    if not new:
        log.warning("the network has no BatchNorm layers; nothing was replaced")
        return
    sizes = sorted({norm.num_channels // norm.num_groups for norm in new})
    layers = f"{len(new)} BatchNorm layer{'s' if len(new) > 1 else ''}"
    channels = ", ".join(map(str, sizes))
    text = f"replaced {layers} by GroupNorm (groups of {channels} channels)"
    trained = any(
        layer.running_mean is not None and bool(torch.any(layer.running_mean != 0)) for layer in old
    )
    lost = "; their running statistics are lost, so train the network again" if trained else ""
    log.warning("%s%s", text, lost)
