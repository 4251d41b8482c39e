"""Callbacks, as far as a loop calls them."""


class Callback:
    def set_model(self, model):
        self.model = model

    def __getattr__(self, name):
        if name.startswith("on_"):
            return lambda *args, **kwargs: None
        raise AttributeError(name)


class History(Callback):
    def on_train_begin(self, logs=None):
        self.history = {}

    def on_epoch_end(self, epoch, logs=None):
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)


class EarlyStopping(Callback):
    pass


class ModelCheckpoint(Callback):
    pass


class CallbackList:
    def __init__(self, callbacks):
        self.callbacks = callbacks

    def set_model(self, model):
        model.stop_training = False
        for callback in self.callbacks:
            callback.set_model(model)

    def __getattr__(self, name):
        def each(*args, **kwargs):
            for callback in self.callbacks:
                getattr(callback, name)(*args, **kwargs)

        return each
