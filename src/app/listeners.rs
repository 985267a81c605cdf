//! Addresses on which a process listens.

use std::net::SocketAddr;

use anyhow::Context;
use tokio::net::TcpListener;

use crate::config::Settings;

pub(super) async fn metrics_listener(settings: &Settings) -> anyhow::Result<Option<TcpListener>> {
    match settings.metrics_listen {
        Some(address) => listen("SOJOURN_METRICS_LISTEN", address).await.map(Some),
        None => Ok(None),
    }
}

pub(super) async fn listen(setting: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("{setting}: cannot listen on {address}"))
}
