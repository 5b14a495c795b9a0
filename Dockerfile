# The gateway in Caddy's official image, built the way that image documents:
#
#	docker build --build-arg FLEXINFER_VERSION=v0.1.0 -t flexinfer-gateway .
#	docker run --rm -p 8080:8080 -e UPSTREAMS="10.0.0.5:11434 10.0.0.6:11434" flexinfer-gateway
#
# From a published version instead of this clone, leave out the COPY lines of the
# builder and the "=/src" below. With modules of others, add further --with.

ARG CADDY_VERSION=2.11.9

FROM caddy:${CADDY_VERSION}-builder AS builder

ARG CADDY_VERSION
ARG FLEXINFER_VERSION=v0.0.0

# No file capabilities: a container that drops all of them could not start the
# binary. The gateway listens on a port above 1024.
ENV XCADDY_SETCAP=0

COPY go.mod go.sum flexinfer.go /src/
COPY caddyfile /src/caddyfile
COPY k8sdiscovery /src/k8sdiscovery
COPY modules /src/modules

RUN xcaddy build "v${CADDY_VERSION}" --output /usr/bin/caddy \
	--with "github.com/flexinfer/caddy-flexinfer@${FLEXINFER_VERSION}=/src"

FROM caddy:${CADDY_VERSION}

COPY --from=builder /usr/bin/caddy /usr/bin/caddy
COPY examples/container/Caddyfile /etc/caddy/Caddyfile

# Any other user does as well, also with a read-only root, if it can write to
# /data and /config.
RUN mkdir -p /data/caddy /config/caddy && chown -R 1000:1000 /data /config
USER 1000:1000

EXPOSE 8080

HEALTHCHECK --interval=10s --timeout=3s --start-period=5s \
	CMD ["wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8080/healthz"]

CMD ["caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]
