"""The dashboard's pages. ``panel serve dashboard`` runs ``main.py``; nothing else belongs in this file."""
