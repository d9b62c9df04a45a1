//! Configuration files of haproxy and nginx: plain round robin, one thread, no log, no look into bodies.

use std::net::SocketAddr;
use std::path::Path;

pub(crate) struct Proxied<'a> {
    pub(crate) port: u16,
    pub(crate) workers: &'a [SocketAddr],
    pub(crate) scratch: &'a Path,
    pub(crate) threads: usize,
}

pub(crate) fn haproxy(proxied: &Proxied<'_>) -> String {
    let servers: String = (1..)
        .zip(proxied.workers)
        .map(|(number, addr)| format!("    server w{number} {addr} pool-max-conn -1\n"))
        .collect();
    format!(
        "global
    nbthread {}
    maxconn 8000
defaults
    mode http
    timeout connect 5s
    timeout client 300s
    timeout server 300s
    option http-no-delay
    option http-keep-alive
    http-reuse always
frontend front
    bind 127.0.0.1:{}
    default_backend workers
backend workers
    balance roundrobin
{servers}",
        proxied.threads, proxied.port
    )
}

pub(crate) fn nginx(proxied: &Proxied<'_>) -> String {
    let servers: String =
        proxied.workers.iter().map(|addr| format!("        server {addr} max_fails=0;\n")).collect();
    let scratch = proxied.scratch.display();
    format!(
        "daemon off;
master_process off;
worker_processes 1;
pid {scratch}/nginx-{port}.pid;
events {{ worker_connections 8000; }}
http {{
    access_log off;
    client_body_temp_path {scratch}/nginx-body;
    proxy_temp_path {scratch}/nginx-proxy;
    fastcgi_temp_path {scratch}/nginx-fastcgi;
    uwsgi_temp_path {scratch}/nginx-uwsgi;
    scgi_temp_path {scratch}/nginx-scgi;
    client_max_body_size 64m;
    client_body_buffer_size 2m;
    keepalive_requests 1000000000;
    keepalive_timeout 300s;
    tcp_nodelay on;
    upstream workers {{
{servers}        keepalive 64;
        keepalive_requests 1000000000;
        keepalive_timeout 4s;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://workers;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_buffering off;
            proxy_read_timeout 300s;
        }}
    }}
}}
",
        port = proxied.port
    )
}
