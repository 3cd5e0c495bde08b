"""What pages are made of: components, controls, panes, colours."""
