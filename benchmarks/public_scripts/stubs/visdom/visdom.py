"""Nothing is shown."""


class Visdom:
    def line(self, *args, **kwargs):
        return "window"

    text = line
