# hail with the programs beside it, for nodes and hubs: docs/guide/install.md.
FROM rust:1-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends pkg-config && rm -rf /var/lib/apt/lists/*
WORKDIR /hailwire
COPY . .
RUN ./x install --prefix /opt/hailwire

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 7443 --create-home --home-dir /data hail
COPY --from=build /opt/hailwire/ /usr/local/
# The key is in the data folder: keep it.
ENV HAIL_DATA=/data
USER hail
WORKDIR /data
VOLUME /data
ENTRYPOINT ["hail"]
CMD ["up"]
