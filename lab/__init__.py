"""What only a checkout can use: each word of `make` that works on the source, its tests or containers of it.

mutants    each rule taken out of the code, one at a time: some test must notice
sim        seeds of the simulator with a rule taken out
explore    every state of the production cores, within bounds
compose    the image and the compose files, as a target of chaos
pages      the generated parts of the documentation
selftest   one seed, many processes, one trace
pictures   a picture of what each Spark pipeline left behind

No part of the wheel: the lab imports the product, and nothing of the product imports the lab.
"""
