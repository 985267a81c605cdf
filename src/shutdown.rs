//! Shutdown by signals.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Cancels `stop` at the first SIGTERM or SIGINT; the second exits at once.
pub async fn on_signals(stop: CancellationToken) {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::error!("cannot install signal handlers; the process can only be killed");
        return;
    };
    for heard in 0.. {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        if heard > 0 {
            tracing::warn!("second stop signal: exiting now; other workers take over when the leases expire");
            std::process::exit(130);
        }
        tracing::info!("stop signal received: draining");
        stop.cancel();
    }
}
