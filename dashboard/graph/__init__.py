"""The page SRG: the graph of one cell, folded, drawn and searched."""
