"""The page Graph:"""
