"""Backend of torch.compile: torch.compile(model, backend="autosched").

backend        entry point: graphs of AOTAutograd, for inference and training
partition      partition of a graph into compiled subgraphs and nodes that torch runs
subgraph       a compiled subgraph, whose weights are packed again when they have changed
options        the `options` of torch.compile
memory_format  inputs and outputs in other memory formats, such as channels_last
explain        the time of each subgraph
"""
