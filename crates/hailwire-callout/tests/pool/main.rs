//! What a pool of connections promises, over real Unix sockets.

mod flow;
mod house;
mod killed;
mod requests;
mod trouble;
