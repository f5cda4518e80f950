# protovalue on the CPU. Give the index of CPU builds that PyTorch's install page names; without it the image grows by
# gigabytes of CUDA:
#
#   docker build --build-arg TORCH_INDEX=URL -t protovalue .
#   docker run --rm -v "$PWD:/here" -u "$(id -u):$(id -g)" protovalue demo
FROM python:3.11-slim

ARG TORCH_INDEX=""
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c constraints.txt .

# Whoever it runs as can write there: compiled code, indicator rewards, matplotlib's and PyTorch's own.
ENV HOME=/tmp XDG_CACHE_HOME=/tmp/cache NUMBA_CACHE_DIR=/tmp/cache/numba MPLCONFIGDIR=/tmp/cache/matplotlib
WORKDIR /here
ENTRYPOINT ["pvn"]
CMD ["--help"]
