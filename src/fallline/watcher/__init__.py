"""The watcher: calls of torch become events, numbers become series, and a run says where it went wrong.

`session.Session` puts the parts together; each is one file, with what it needs in its constructor, and listens to `fallline.taps`:

    forwards, backwards, reach, loss      model calls and losses: in which mode, divided by what, reaching which parameters
    steps, clips, scalers, schedulers     optimizers and what is around them
    loaders, modes, waits                 data, train and eval, waits for a device
    by_hand, owners, kept                 gradients touched by hand, parameters nobody steps, graphs that stay alive
    updates, measures, numbers, guard     one update: its numbers, and whether it may be applied
    duty, pace, rest, ration              how many updates are watched, and how often the guard looks, within the budget
    origin, capture, replay               where a NaN was born
    emit, log, routine, window, trace     events in order, bounded; updates that are well known are only compared
    recording, recorder, observed, judge  the run folder, and the rules, which are handed in from above
"""
