"""From a region, which is data, to what torch's compiler reads."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from djinn_lab.srg.program import Program, Template, TensorMeta
from djinn_lab.srg.wiring import trace_wiring
from djinn_lab.worker.compiled.compilers import TracedRegion
from djinn_lab.worker.compiled.replay import RegionReplay
from djinn_lab.worker.templates import Call


def traced(region: Program, kind: str, threads: int) -> TracedRegion:
    """Return a region (:mod:`djinn_lab.srg.region_programs`) as a graph of ATen ops, for a kind of device."""
    device, wiring = torch.device(kind), trace_wiring(region)
    replay = RegionReplay(region, [Call(_traceable(one), device).unguarded for one in region.templates])
    with FakeTensorMode(), torch.no_grad():
        inputs = tuple(_of_layout(region.metas[source.meta], device) for source in region.sources)
        graph = make_fx(lambda *tensors: tuple(replay(tensors)))(*inputs)
    touched = {wiring.storages[value] for node in wiring.writes for value in node}
    written = [place for place, source in enumerate(region.sources) if source.storage in touched]
    return TracedRegion(graph, inputs, written, device, threads)


def _traceable(template: Template) -> Template:
    """A reshape that eager torch ends in a view of raw memory stays a reshape."""
    if template.op == "aten._reshape_alias.default":
        return Template("aten.reshape.default", template.args[:2], {})
    return template


def _of_layout(meta: TensorMeta, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(meta.shape, meta.stride, dtype=getattr(torch, meta.dtype), device=device)
