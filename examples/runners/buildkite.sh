#!/bin/sh
# A Buildkite agent that takes one job and leaves, once there is room for the job's pod. Where hooks of the agent run the job in a pod of its own,
# they put the annotation of this file on it: {"pecking-order.dev/claim": "..."}.
set -eu
POOL=${POOL:-general}
export ANNOTATIONS="${ANNOTATIONS:-/tmp/pod-annotations.json}"

while true; do
    pecking-order claim "$POOL" --pod-annotation-file "$ANNOTATIONS" -- \
        buildkite-agent start --disconnect-after-job --disconnect-after-idle-timeout 60 || [ $? -eq 75 ] || sleep 5
    [ -z "${ONCE:-}" ] || break
done
