//! Workers over real sockets, seen through a client that knows nothing but bytes.

mod client;
mod disconnects;
mod faults;
mod gates;
mod routes;
mod speed;
mod streams;
mod timing;
