# The server in a container. From the root of the repository:
#
#   docker build -t fila --build-arg FILA_COMMIT="$(git rev-parse HEAD)" .
#   docker run -d --name fila -p 127.0.0.1:5555:5555 -v fila-data:/var/lib/fila -e FILA_SERVER__INSECURE=true fila
#
# deploy/README.md explains the second line. The build needs BuildKit, the default since Docker 23.

ARG RUST_VERSION=1.95
ARG DEBIAN=bookworm

FROM rust:${RUST_VERSION}-slim-${DEBIAN} AS build
WORKDIR /src
COPY . .
# The build context has no git repository: `fila --version` prints this commit. It may be empty.
ARG FILA_COMMIT=
# Downloads and compiled dependencies stay in a cache for the next build. The cache is not part of the image, so the
# program is copied out of it, without symbols.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    FILA_COMMIT="${FILA_COMMIT}" cargo build --release --locked -p fila-cli \
    && strip -o /fila target/release/fila \
    && /fila --version

FROM debian:${DEBIAN}-slim
# The user id is the same in every image, so that a volume belongs to the same user after an upgrade.
RUN groupadd --system --gid 5555 fila \
    && useradd --system --uid 5555 --gid fila --home-dir /var/lib/fila --no-create-home --shell /usr/sbin/nologin fila \
    && install -d -o fila -g fila -m 0700 /var/lib/fila \
    && install -d -m 0755 /etc/fila
COPY --from=build /fila /usr/local/bin/fila
COPY LICENSE-MIT LICENSE-APACHE /usr/share/doc/fila/

# Clients reach a container through its network, so loopback would be useless. The server does not start on another address
# unless FILA_SERVER__INSECURE=true or --insecure allows it, because there is neither TLS nor authentication. Docker kills a
# container ten seconds after it asked it to stop, so the server has to finish by then.
ENV FILA_SERVER__ADDRESS=0.0.0.0:5555 \
    FILA_SERVER__SHUTDOWN_TIMEOUT_MS=8000 \
    FILA_STORAGE__PATH=/var/lib/fila

# gRPC, /metrics, /healthz and /readyz.
EXPOSE 5555
VOLUME /var/lib/fila
# The server reads a fila.toml that is mounted here.
WORKDIR /etc/fila
USER fila
STOPSIGNAL SIGTERM

# The check of a load balancer. A server that reads a long backlog at start is not ready for a while; one whose store takes
# no more writes is never ready again, and needs a person.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/5555 && printf 'GET /readyz HTTP/1.1\\r\\nhost: fila\\r\\nconnection: close\\r\\n\\r\\n' >&3 && grep -qx ready <&3"]

ENTRYPOINT ["fila"]
CMD ["server"]
