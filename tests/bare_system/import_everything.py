"""Import every module of regard, except for the kernels, which need Triton, and the lessons, which train."""

import pkgutil
from importlib import import_module

import regard

LEFT_OUT = ("regard.__main__", "regard.ops.triton.", "regard.recurrent.fast.triton_", "regard.course.lesson_")

for module in pkgutil.walk_packages(regard.__path__, "regard."):
    if not module.name.startswith(LEFT_OUT):
        import_module(module.name)
        print(module.name)
