"""Running a piece of the user's training code again, as it was: the micro-batch, its statements up to the backward, its randomness.

`capture` keeps what a micro-batch was made of, `again` runs it; `region`, `once` and `kept` say which statements can be run a second
time and put back what they change. `tensors` and `modules` name what is met on the way: operations, storages, modules. The watcher
replays to find where a NaN was born, instruments replay to measure.
"""
