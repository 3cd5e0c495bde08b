"""The page Simulator:"""
