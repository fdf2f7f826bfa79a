# Images of Stream2LLM: one target each for `router`, `operator` and `pod`.
#
#   docker build --target router -t stream2llm-router .
#   docker build --target pod -t stream2llm-pod .                                    # GPU, on the official vLLM image
#   docker build --target pod --build-arg POD_BASE=vllm-cpu -t stream2llm-pod:cpu .  # CPU, on the stage below
#
# Every base is an argument, so that a mirror or an own build can take its place.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG POD_BASE=vllm/vllm-openai:v0.32.0


# The wheel, built once for all images, with locked build tools and no access to anything else.
FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /source
COPY requirements/build.lock requirements/build.lock
RUN python3 -m venv /build \
    && /build/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements/build.lock
COPY pyproject.toml README.md LICENSE ./
COPY client client
COPY router router
COPY pod pod
COPY operator operator
COPY bench bench
RUN /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .


FROM ${PYTHON_IMAGE} AS router-environment
COPY requirements/router.lock /requirements/
RUN python3 -m venv /opt/stream2llm \
    && /opt/stream2llm/bin/pip install --no-cache-dir --no-deps --require-hashes -r /requirements/router.lock
COPY --from=wheel /wheels /wheels
RUN /opt/stream2llm/bin/pip install --no-cache-dir --no-deps /wheels/*.whl \
    && /opt/stream2llm/bin/pip uninstall --yes --quiet pip setuptools


FROM ${PYTHON_IMAGE} AS operator-environment
COPY requirements/operator.lock /requirements/
RUN python3 -m venv /opt/stream2llm \
    && /opt/stream2llm/bin/pip install --no-cache-dir --no-deps --require-hashes -r /requirements/operator.lock
COPY --from=wheel /wheels /wheels
RUN /opt/stream2llm/bin/pip install --no-cache-dir --no-deps /wheels/*.whl \
    && /opt/stream2llm/bin/pip uninstall --yes --quiet pip setuptools


# What vLLM on CPU needs beside Python packages. As POD_BASE it gives a small image that gets those from a volume.
FROM ${PYTHON_IMAGE} AS cpu-libraries
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libnuma1 \
    && rm -rf /var/lib/apt/lists/*


# The CPU base of the pod: what the official image brings, on plain Python. g++ is for vLLM's compiled kernels.
FROM cpu-libraries AS vllm-cpu
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
COPY requirements/pod-cpu.lock /requirements/
RUN python3 -m venv /opt/vllm \
    && /opt/vllm/bin/pip install --no-cache-dir --no-deps --require-hashes -r /requirements/pod-cpu.lock
ENV PATH=/opt/vllm/bin:$PATH


FROM ${PYTHON_IMAGE} AS router
# A passwd entry, not only a number: libraries look the user's name up.
RUN groupadd --gid 10001 stream2llm \
    && useradd --uid 10001 --gid 10001 --create-home --shell /usr/sbin/nologin stream2llm
COPY --from=router-environment /opt/stream2llm /opt/stream2llm
ENV PATH=/opt/stream2llm/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /home/stream2llm
EXPOSE 8080
LABEL org.opencontainers.image.title="stream2llm router" \
      org.opencontainers.image.description="Forwards streaming prompts from Redis to serving pods" \
      org.opencontainers.image.licenses="Apache-2.0"
ENTRYPOINT ["stream2llm"]
CMD ["route"]


FROM ${PYTHON_IMAGE} AS operator
RUN groupadd --gid 10001 stream2llm \
    && useradd --uid 10001 --gid 10001 --create-home --shell /usr/sbin/nologin stream2llm
COPY --from=operator-environment /opt/stream2llm /opt/stream2llm
# What `costProfile.bundled` takes from.
COPY costprofiles/*.json /opt/stream2llm/costprofiles/
ENV PATH=/opt/stream2llm/bin:$PATH PYTHONUNBUFFERED=1 STREAM2LLM_COST_PROFILES=/opt/stream2llm/costprofiles
USER 10001:10001
WORKDIR /home/stream2llm
EXPOSE 8081 8082
LABEL org.opencontainers.image.title="stream2llm operator" \
      org.opencontainers.image.description="Kubernetes operator for StreamingPrefill resources" \
      org.opencontainers.image.licenses="Apache-2.0"
ENTRYPOINT ["stream2llm"]
CMD ["operator"]


FROM ${POD_BASE} AS pod
USER root
COPY requirements/pod.lock /requirements/
COPY --from=wheel /wheels /wheels
# Into the Python that has vLLM; some bases mark it as externally managed, and here we are the manager.
RUN PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir --no-deps --require-hashes -r /requirements/pod.lock \
    && PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir --no-deps /wheels/*.whl \
    && groupadd --gid 10001 stream2llm \
    && useradd --uid 10001 --gid 10001 --create-home --shell /usr/sbin/nologin stream2llm
ENV PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /home/stream2llm
EXPOSE 8000
LABEL org.opencontainers.image.title="stream2llm pod" \
      org.opencontainers.image.description="vLLM with streaming prefill, fed through Redis streams" \
      org.opencontainers.image.licenses="Apache-2.0"
ENTRYPOINT ["stream2llm"]
CMD ["serve"]
