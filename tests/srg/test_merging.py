"""Several programs of a session as one."""

from __future__ import annotations

from programs import Script, contiguous

from djinn_lab.srg.graph import SRG
from djinn_lab.srg.merging import merge_programs


def test_merged_programs_know_a_shape_that_depended_on_data_from_its_reader() -> None:
    script = Script()
    mask = script.source((8,))
    found = script.dynamic("aten.nonzero.default", mask)
    first = script.program(keep=(found,))
    assert SRG.from_program(first).nodes[0].shape is None
    script.metas[found] = contiguous(3, 1)
    script.op("aten.neg.default", found)
    srg = SRG.from_program(merge_programs([first, script.program()]))
    assert srg.nodes[0].shape == (3, 1)
    assert [(edge.source, edge.nbytes) for edge in srg.edges if edge.target == 1] == [(0, 12)]


def test_merged_programs_leave_a_shape_open_that_is_never_read() -> None:
    script = Script()
    mask = script.source((8,))
    found = script.dynamic("aten.nonzero.default", mask)
    first = script.program(keep=(found,))
    script.op("aten.neg.default", mask)
    srg = SRG.from_program(merge_programs([first, script.program()]))
    assert [node.shape for node in srg.nodes] == [None, (8,)]
