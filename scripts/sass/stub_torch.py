"""A torch that can be imported and does nothing: enough to read flash-linear-attention's Triton kernels, which import
it and whose compilation does not need it."""

import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
import types

VERSION = "2.9.1"


class Base:
    """A stand-in for a class, to inherit from, to subscribe and to call."""

    def __init__(self, *args, **options):
        pass

    def __class_getitem__(cls, item):
        return cls

    def __init_subclass__(cls, **options):
        pass


class Anything:
    """A stand-in for a value: it may be called, compared, asked for its parts. As a decorator it gives the function."""

    def __call__(self, *args, **options):
        return args[0] if len(args) == 1 and callable(args[0]) and not options else Anything()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __mro_entries__(self, bases):
        return (Base,)

    __getitem__ = __or__ = __ror__ = __enter__ = lambda self, *more: Anything()
    __exit__ = __bool__ = __lt__ = __le__ = lambda self, *more: False
    __gt__ = __ge__ = lambda self, *more: True
    __index__ = __int__ = __len__ = lambda self: 0
    __iter__ = lambda self: iter(())


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (Base,), {}) if name[0].isupper() or name in ("dtype", "device") else Anything()
        if name == "version":
            value = Module("torch.version")
            value.cuda, value.hip = "13.0", None
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("torch", "transformers"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = Module(spec.name)
        module.__path__, module.__version__ = [], VERSION
        return module

    def exec_module(self, module):
        pass


def install():
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: VERSION if name == "torch" else version(name)
    sys.meta_path.insert(0, Finder())
