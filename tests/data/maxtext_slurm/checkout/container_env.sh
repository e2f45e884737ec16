DOCKER_IMAGE="${DOCKER_IMAGE:-rocm/jax-training:maxtext-v26.2}"
MAXTEXT_PATCH_BRANCH=pipelines
