"""Import every module of regard, except for the kernels, which need Triton."""

import pkgutil
from importlib import import_module

import regard

for module in pkgutil.walk_packages(regard.__path__, "regard."):
    if not module.name.startswith(("regard.__main__", "regard.ops.triton.", "regard.recurrent.fast.triton_")):
        import_module(module.name)
        print(module.name)
