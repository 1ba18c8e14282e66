#!/bin/sh
# GitHub's runner, ephemeral: it registers only once there is room, takes one job, and is gone. With container hooks the job runs in a pod of
# its own; ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE names a pod template, which gets the claim's annotation here.
set -eu
POOL=${POOL:-general}
TEMPLATE=${ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE:-/tmp/job-pod.json}
export TEMPLATE REPOSITORY_URL RUNNER_TOKEN ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE="$TEMPLATE"

while true; do
    pecking-order claim "$POOL" --wait 30m -- sh -c '
        printf "{\"metadata\":{\"annotations\":{\"pecking-order.dev/claim\":\"%s\"}}}" "$PECKING_ORDER_CLAIM" > "$TEMPLATE"
        ./config.sh --unattended --ephemeral --replace --name "$PECKING_ORDER_CLAIM" --url "$REPOSITORY_URL" --token "$RUNNER_TOKEN"
        exec ./run.sh
    ' || [ $? -eq 75 ] || sleep 5
    [ -z "${ONCE:-}" ] || break
done
