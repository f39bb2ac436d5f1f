"""torch.compile(model, backend="autosched").

backend        graphs of AOTAutograd, for inference
partition      which nodes of a graph are compiled, and which torch runs
subgraph       a compiled part, packed anew when its weights have changed
options        what `options` may say
memory_format  inputs and outputs whose dimensions are stored in another order, as channels_last images
explain        the time of each part
"""
