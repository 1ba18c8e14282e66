# Build, and gather what the binary needs at run time: its C library and loader, and the public certificate authorities for
# backends over HTTPS. tests/image.rs runs the binary in a root directory of just these files.
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --bin pecking-order
RUN mkdir /image \
    && cp target/release/pecking-order /image/ \
    && cp --parents --dereference $(ldd target/release/pecking-order | grep -o '/[^ ]*') /etc/ssl/certs/ca-certificates.crt /image/

FROM scratch
COPY --from=build /image /
USER 65532:65532
EXPOSE 8443 8080
ENTRYPOINT ["/pecking-order"]
CMD ["serve"]
