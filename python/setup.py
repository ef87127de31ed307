# SPDX-License-Identifier: MIT-0 OR Unlicense
"""A wheel for this kind of machine: cdp.py, and in cdp_library/ the library and the launcher, compiled here.

    pip wheel --no-deps --no-build-isolation python/       or pip install, with setuptools and wheel installed
"""
import os
import re
import sys

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70
    from wheel.bdist_wheel import bdist_wheel

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import cdp  # noqa: E402

with open(os.path.join(cdp.headers(), "cdp.h"), encoding="ascii") as header:
    version = ".".join(re.findall(r"^#define CDP_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)", header.read(), re.M))


class Build(build_py):
    def run(self):
        super().run()
        cdp.build(os.path.join(self.build_lib, "cdp_library", "libcdp.so"))
        cdp.build_cdprun(os.path.join(self.build_lib, "cdp_library", "cdprun"))


class Compiled(Distribution):
    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(name="cdp", version=version, description="data-parallel training in C, from Python", py_modules=["cdp"],
      python_requires=">=3.8", license="MIT-0 OR Unlicense",
      distclass=Compiled, cmdclass={"build_py": Build, "bdist_wheel": Wheel})
