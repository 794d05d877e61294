"""The paper's evaluation, made again: each of its figures and tables is a target that measures, draws, tells.

``paper`` holds what the paper printed, ``scales`` how much is measured, ``measured`` the rounds that several
targets share; every target has a module of its own, and ``page`` puts them on one page.
"""
