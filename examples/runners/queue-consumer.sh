#!/bin/sh
# Takes one message from a queue only once there is room for the pod that will work on it, makes that pod, and waits until it has a node.
# `take-message` prints a message, or ends with an error where there is none; it must not be acknowledged before the pod is there.
set -eu
POOL=${POOL:-general}

while true; do
    pecking-order claim "$POOL" -- sh -c '
        message=$(take-message) || exit 0
        kubectl create -f - <<POD
{"apiVersion": "v1", "kind": "Pod",
 "metadata": {"generateName": "work-", "annotations": {"pecking-order.dev/claim": "$PECKING_ORDER_CLAIM", "example.com/message": "$message"}},
 "spec": {"restartPolicy": "Never", "containers": [{"name": "work", "image": "registry.example/work:1", "args": ["$message"],
          "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}}
POD
        acknowledge-message "$message"
        # While this runs the claim holds. It ends by itself when the pod has its node.
        while [ "$(kubectl get headroomclaim "$PECKING_ORDER_CLAIM" -o jsonpath="{.status.conditions[?(@.type==\"Released\")].status}")" != True ]; do
            sleep 1
        done
    ' || [ $? -eq 75 ] || sleep 5
    [ -z "${ONCE:-}" ] || break
done
