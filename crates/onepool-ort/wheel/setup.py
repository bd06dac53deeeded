"""Marks the wheel as one for this platform and any Python 3: it holds a library that no Python extension is."""

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class Platform(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class WithLibrary(Distribution):
    def has_ext_modules(self):
        return True


setup(distclass=WithLibrary, cmdclass={"bdist_wheel": Platform})
