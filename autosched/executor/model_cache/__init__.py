"""Model cache: an ONNX file that was loaded before on this processor is linked without import, passes and planning.

request       what the result of a load depends on; its key in the disk cache
file_digest   the state of a file, and the digest of its content
file_ranges   constants as ranges of the files that they come from
entry         link plan, object files and ranges of constants as an entry of the disk cache
cached_model  a network linked from an entry; the execution plan is made when it is first asked for
"""
