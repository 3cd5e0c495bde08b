"""The boxes of a graph as rows of a table."""

from __future__ import annotations

from djinn_lab.dashboard.graph.folding import Tree
from djinn_lab.dashboard.graph.scene import Scene, format_flops
from djinn_lab.dashboard.graph.shading import Shading
from djinn_lab.dashboard.widgets.table_cells import columns
from djinn_lab.units import format_bytes

BOX_TABLE_COLUMNS = columns(
    ("name", "Box", "mono"),
    ("path", "Module", "text"),
    ("phase", "Phase", "short"),
    ("ops", "Ops", "number"),
    ("flops", "FLOPs", "number"),
    ("written", "Written", "number"),
    ("figure", "Colour shows", "short"),
)


def box_rows(tree: Tree, scene: Scene, shading: Shading) -> list[dict[str, object]]:
    """Return a row for each box and open group, in the order of the drawing."""
    rows: list[dict[str, object]] = []
    for frame in scene.frames:
        item, totals = frame.item, tree.totals(frame.item)
        mark = "" if not item.is_group else "▾ " if frame.opened else "▸ "
        rows.append(
            {
                "id": str(item.index),
                "name": f"{mark}{item.name}",
                "path": item.path,
                "phase": ", ".join(totals.phases),
                "ops": totals.ops,
                "flops": {"text": format_flops(totals.flops), "sort": totals.flops},
                "written": {"text": format_bytes(totals.bytes_written), "sort": totals.bytes_written},
                "figure": shading.shade(item).figure or totals.phase,
            }
        )
    return rows
