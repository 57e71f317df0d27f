"""What a training service does first with a request: put it safely into its inbox. Called by `stepwell retrain listen`.

The request comes as JSON on standard input; its trigger_id is the idempotency key: the same request twice is one file.
"""

import json
import sys
from pathlib import Path

request = json.load(sys.stdin)
inbox = Path(sys.argv[1])
inbox.mkdir(parents=True, exist_ok=True)
path = inbox / f"{request['trigger_id']}.json"
partial = path.with_suffix(".partial")
partial.write_text(json.dumps(request, indent=2))
partial.replace(path)
print(f"in the inbox: {path.name}")
