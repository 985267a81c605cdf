//! The egress proxy, seen from inside: programs use it only through their variables.

use std::{sync::Arc, time::Instant};

use sojourn::{
    base::{Origin, limit::EGRESS_FLUSH_INTERVAL},
    egress::{Authority, Proxy, Verdict},
};
use tokio::task::JoinHandle;

use super::{World, with_local};
use crate::egress::{Host, MemoryLog, PLACEHOLDER, SECRET, proxy, rule};

/// Requests a URL with an `Authorization` header and prints the outcome.
const ASK: &str = "python3 - \"$1\" <<'END'
import sys, urllib.request, urllib.error
request = urllib.request.Request(sys.argv[1], headers={'Authorization': 'Bearer sjph_placeholder'})
try:
    with urllib.request.urlopen(request, timeout=20) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except Exception as error:
    print(error)
END";

/// Attaches the sandbox to a proxy.
async fn served(world: &World<'_>, proxy: &Arc<Proxy>) -> JoinHandle<()> {
    let authority = Authority::of(&[7; 32], &Origin::system()).unwrap();
    let egress_socket = world.sandbox.egress_socket(world.fence, &authority.bundle(&[])).await;
    tokio::spawn(Arc::clone(proxy).serve(egress_socket.unwrap(), authority))
}

async fn asked(world: &World<'_>, url: &str) -> String {
    world.says(&format!("set -- '{url}'; {ASK}")).await
}

pub async fn a_sandbox_reaches_what_its_egress_attachment_allows(world: &World<'_>) {
    assert_eq!(
        asked(world, "http://a.example/").await,
        "503 this sandbox has no network while its session is idle"
    );
    let host = Host::start(true, "HTTP/1.1 200 OK\r\n").await;
    let paper = Arc::new(MemoryLog::default());
    let proxy =
        proxy(vec![rule("bound.example", host.port, &["GET"], None)], &host, Arc::clone(&paper) as _, true);
    let serving = served(world, &proxy).await;

    let answer = asked(world, &format!("https://bound.example:{}/x", host.port)).await;
    assert!(answer.starts_with("200 GET /x HTTP/1.1"), "{answer}");
    assert!(answer.contains(PLACEHOLDER) && !answer.contains(SECRET), "{answer}");
    assert!(host.heads()[0].contains(SECRET));
    let refused = asked(world, "http://elsewhere.example/").await;
    assert!(refused.starts_with("403 egress: "), "{refused}");
    assert!(asked(world, "https://elsewhere.example/").await.contains("403"));
    assert_eq!(paper.lines().len(), 3);
    assert!(matches!(&paper.lines()[0].0.verdict, Verdict::Allowed { secrets, .. } if *secrets == ["TOKEN"]));

    // The sandbox can read the certificates and use the socket, and change neither.
    assert_eq!(world.says("ls -A /.sojourn/egress | tr '\\n' ' '").await, "certificates.pem proxy.sock");
    let attempts = "for attempt in 'rm /.sojourn/egress/proxy.sock' 'touch /.sojourn/egress/x' \
        'python3 -c \"import socket; socket.socket(socket.AF_UNIX).connect(\\\"/.sojourn/egress/proxy.sock\\\")\"' \
        'python3 -c \"import socket; socket.create_server((\\\"127.0.0.1\\\", 3128))\"'; do
        bash -c \"$attempt\" 2>/dev/null && echo \"$attempt\"; done; true";
    assert_eq!(world.says(attempts).await, "");
    assert_eq!(
        world.says("grep -rl 'PRIVATE KEY' /.sojourn /etc /tmp /workspace 2>/dev/null; true").await,
        ""
    );
    // Commands cannot kill the relay.
    assert_eq!(world.says("sleep 611 & kill -9 -1; echo alone").await, "alone");
    assert!(asked(world, &format!("https://bound.example:{}/y", host.port)).await.starts_with("200"));
    proxy.close().await;
    serving.await.unwrap();
    assert_eq!(
        asked(world, "http://a.example/").await,
        "503 this sandbox has no network while its session is idle"
    );
}

#[test]
fn many_connections_at_once_are_served_in_turn() {
    with_local(|world| {
        Box::pin(async move {
            let host = Host::start(true, "HTTP/1.1 200 OK\r\n").await;
            let paper = Arc::new(MemoryLog::default());
            let rules = vec![rule("a.example", host.port, &["GET"], None)];
            let proxy = proxy(rules, &host, Arc::clone(&paper) as _, true);
            let serving = served(world, &proxy).await;
            let began = Instant::now();
            let script = format!(
                "python3 - <<'END'
import urllib.request, concurrent.futures
def one(at):
    with urllib.request.urlopen('https://a.example:{}/' + str(at), timeout=50) as answer:
        return answer.status
with concurrent.futures.ThreadPoolExecutor(10) as pool:
    print(sum(status == 200 for status in pool.map(one, range(40))))
END",
                host.port
            );
            assert_eq!(world.says(&script).await, "40");
            proxy.close().await;
            serving.await.unwrap();
            let (lines, counted) = (paper.lines(), proxy.take());
            let total: u64 = lines.iter().chain(&counted).map(|(_, count)| count).sum();
            assert_eq!(total, 40, "every decision is counted");
            // The first one, and one for each interval.
            let flushes = 2 + began.elapsed().as_secs() / EGRESS_FLUSH_INTERVAL.as_secs();
            assert!(lines.len() as u64 <= flushes, "equal decisions are written together: {lines:?}");
        })
    });
}
