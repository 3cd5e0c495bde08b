"""Functions of torch that answer otherwise while a cell is captured."""
