"""llama.cpp's own server, as the library xllamacpp has it: ``llama_server.py WEIGHTS NAME PORT CONTEXT``."""

import signal
import sys

import xllamacpp

weights, name, port, context = sys.argv[1:]
options = xllamacpp.CommonParams()
options.model.path, options.model_alias, options.port = weights, [name], int(port)
options.n_ctx, options.n_parallel = int(context), 1
# Keys and values in float32, as transformers has them.
options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
server = xllamacpp.Server(options)
signal.pause()
