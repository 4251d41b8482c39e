"""Stands in for the package gflags: named flags with a kind and a default."""


class _Flags:
    def __init__(self):
        self.__dict__["kinds"] = {}

    def __call__(self, arguments):
        for argument in arguments[1:]:
            name, _, value = argument.lstrip("-").partition("=")
            self.__dict__[name] = self.kinds[name](value)


FLAGS = _Flags()


def _define(kind):
    def define(name, default, about):
        FLAGS.kinds[name] = kind
        FLAGS.__dict__[name] = default

    return define


DEFINE_bool = _define(lambda value: value == "True")
DEFINE_integer = _define(int)
DEFINE_float = _define(float)
DEFINE_string = _define(str)
