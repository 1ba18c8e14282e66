#!/bin/sh
# GitLab Runner, one job at a time: a job is asked for only once there is room for its pod. CI_SERVER_URL and RUNNER_TOKEN are GitLab's; what else
# the Kubernetes executor needs is given as further options or variables, as for `gitlab-runner register`.
set -eu
POOL=${POOL:-general}
export ANNOTATIONS="${ANNOTATIONS:-/tmp/pod-annotations.json}"

while true; do
    # `run-single` takes one job, or ends without one after --wait-timeout; the claim ends with it, or when the job's pod has a node.
    pecking-order claim "$POOL" --pod-annotation-file "$ANNOTATIONS" -- sh -c '
        exec gitlab-runner run-single --url "$CI_SERVER_URL" --token "$RUNNER_TOKEN" --executor kubernetes \
            --max-builds 1 --wait-timeout 60 --kubernetes-pod-annotations "$(cat "$ANNOTATIONS")" "$@"
    ' sh "$@" || [ $? -eq 75 ] || sleep 5
    [ -z "${ONCE:-}" ] || break
done
