"""The OTLP receiver: metrics and spans of anything with an OpenTelemetry SDK onto ``stepwell.telemetry``.

Read in this order: `senders` (who sends), `metrics` and `spans` (what a request becomes), `appender` and `intake` (onto
the log, with an answer only once it is durable), `grpc_server` and `http_server` (the two transports), `receiver` (all
of it together).
"""

import os

# gRPC writes raw lines to standard error, such as one for a taken port that we tell of anyway. Read at its import.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
