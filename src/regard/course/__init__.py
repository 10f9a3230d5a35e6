"""The course "From a fixed context to the Transformer": each lesson is a script in the percent format of Jupytext.

`regard course` opens a lesson as a notebook, and `make docs` turns each one into a page.
"""
