"""The only patches on torch: who calls what, from which line. Others subscribe; several can at once.

A tap is one file: patches, and the topics on which the calls that pass through them are published.

    from fallline.taps.backward import BACKWARD, BackwardCall
    from fallline.taps.optimizers import STEP, StepCall
    from fallline.taps.tap import Subscription

    def backward_begins(call: BackwardCall) -> None:
        print(call.loss, call.place.at if call.place else "?")   # the user's line, found for you

    taps = Subscription()                  # rebind=True: also where `clip_grad_norm_` was imported by name before
    taps.before(BACKWARD, backward_begins)
    taps.after(STEP, step_ends)
    taps.start()                           # patches what is listened to and was not patched yet
    ...
    taps.leave(STEP)                       # what nobody listens to any more is put back at once
    taps.stop()

The topics: BACKWARD, GRADIENTS_TAKEN (backward.py); STEP, CLOSURE, ZERO_GRAD, OPTIMIZER_MADE, PARAMETERS_ADDED (optimizers.py);
CLIP (clipping.py); SCALE, UNSCALE, SCALER_STEP, SCALER_UPDATE (scaling.py); SCHEDULER_STEP (schedulers.py); FORWARD, MODULE_CALL,
MODULE_MADE, MODULE_REGISTERED, WRAPPED (modules.py); TRAIN, CHECKPOINT, ANOMALY, AUTOCAST_OFF (modes.py); EPOCH, BATCH, EXHAUSTED, INDEX,
SAMPLER_MADE, SAMPLER_EPOCH (data.py); GRADIENT_READ, GRADIENT_WRITTEN (gradients.py); WAIT (waits.py).

- A handler gets the typed call. `before` runs before torch, `after` when the call has returned. A call must not be kept: its frame
  holds the caller's variables. What a call returned is on it in `after` (`Forward.output`, `Batch.batch`, `Clip.result`).
- What a handler raises goes to the user's line: a subscriber catches its own mistakes, and raises on purpose to end a script.
- A tap passes on exactly the arguments it got, and returns exactly what torch returned.
- Calls are published from one thread: the one that trains first (thread.py). In a forked process that is decided again.
- `with silence():` publishes nothing: for computations of a subscriber's own. `with replaying():` also holds steps and clearing back, and
  a backward raises `Reached` with its loss.
- A subscription that is the only one on STEP must not be stopped from a handler of STEP: torch is iterating over its hooks.
- launch.py runs a script as `python SCRIPT` would. frames.py finds lines without depths: `place()` is the user's line from here outwards, `place(call.frame)` the one behind a call. It
  needs no torch, and neither does importing this package.

A new tap: a file with a dataclass derived from `Call`, an `install(patches)` that patches torch and publishes, and a
`Topic(LookupCall, Tap(install))` for each kind of call. It asks `published()` and makes its call with `caller()`; only taps that every update passes ask in place
and fill the call themselves (`new` in tap.py).
"""
