"""For `pip install ./python`: the part in C is compiled for the stable ABI. The module then uses the installed library."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("tieline._native", ["native/native.c"], include_dirs=["../include"], py_limited_api=True),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp39"}},
)
