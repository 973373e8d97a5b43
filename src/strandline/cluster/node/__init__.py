"""One node: its life cycle, configuration, gRPC and HTTP listeners; and the tools that format, run and examine it."""

from strandline.proto.lean_imports import import_without

# structlog draws tracebacks with these where they are installed; a node writes lines of text: 3 MB and 40 ms of CPU.
import_without("structlog", "rich", "better_exceptions")
