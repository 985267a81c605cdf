//! How a process is asked to stop.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Cancels `stop` at the first TERM or INT; the second ends the process at once.
pub async fn on_signals(stop: CancellationToken) {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::error!("signals cannot be heard; the process only stops when it is killed");
        return;
    };
    for heard in 0.. {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        if heard > 0 {
            tracing::warn!("asked twice to stop: stopping at once; other workers take over when leases end");
            std::process::exit(130);
        }
        tracing::info!("asked to stop: handing back what runs");
        stop.cancel();
    }
}
