"""Services beside the plain clients of a run: what users build on our consumer, cancelled at any await.

- `jobs` is fed all the time. Members of the group `workers` handle it, each in a style of its own: by polls, record by
  record, with commits of their own, or by `run` with dead letters.
- `fleeting` is deleted and made anew. The group `visitors` reads it, subscribed or by name.
- `compacted` gets values of a few keys, and is compacted.
- A copy of `jobs` is begun again and again.

Any of their tasks is cancelled now and then, wherever it waits; the same consumer goes on, is closed, or is left alone
for another one. All of them may be killed with their process. What must hold: `checkers.handled`.
"""
