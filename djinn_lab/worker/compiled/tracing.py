"""From a region, which is data, to what torch's compiler reads."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from djinn_lab.srg.program import Program, Template, TensorMeta
from djinn_lab.worker.compiled.replay import RegionReplay
from djinn_lab.worker.templates import Call


def traced(region: Program, device: torch.device) -> tuple[GraphModule, tuple[torch.Tensor, ...]]:
    """Return a region (:mod:`djinn_lab.srg.region_programs`) as a graph of ATen ops, with the inputs that it
    was traced with. These have layouts and no memory."""
    replay = RegionReplay(region, [Call(_traceable(one), device).unguarded for one in region.templates])
    with FakeTensorMode(), torch.no_grad():
        inputs = tuple(_of_layout(region.metas[source.meta], device) for source in region.sources)
        return make_fx(lambda *tensors: tuple(replay(tensors)))(*inputs), inputs


def _traceable(template: Template) -> Template:
    """A reshape that eager torch ends in a view of raw memory stays a reshape."""
    if template.op == "aten._reshape_alias.default":
        return Template("aten.reshape.default", template.args[:2], {})
    return template


def _of_layout(meta: TensorMeta, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(meta.shape, meta.stride, dtype=getattr(torch, meta.dtype), device=device)
