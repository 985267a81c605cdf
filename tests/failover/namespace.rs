//! Network namespaces, and links between them that can be cut without a reset.

use std::{net::Ipv4Addr, path::Path, process::Stdio, sync::Arc};

use anyhow::{Context, ensure};
use tokio::process::Command;

/// A network namespace; removed with its links and the last copy.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<Owned>);

#[derive(Debug)]
struct Owned(String);

/// How a link is cut. Neither sends anything to either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// One interface is down, as after a power loss.
    Down,
    /// Both ends send to a hardware address that nobody has, as after a failover of an address.
    Astray,
}

/// A link between two namespaces.
pub struct Link {
    one: Namespace,
    other: Namespace,
    name: String,
    pub addresses: (Ipv4Addr, Ipv4Addr),
}

const NOBODY: &str = "02:00:00:00:00:99";

impl Namespace {
    /// Creates it with a loopback interface.
    pub async fn new(name: &str) -> anyhow::Result<Self> {
        ip(&["netns", "add", name]).await?;
        let namespace = Self(Arc::new(Owned(name.to_owned())));
        namespace.ip(&["link", "set", "lo", "up"]).await?;
        Ok(namespace)
    }

    /// A command that runs `program` inside. Its pid is that of the program.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.name()]).arg(program);
        command
    }

    fn name(&self) -> &str {
        &self.0.0
    }

    async fn ip(&self, words: &[&str]) -> anyhow::Result<()> {
        ip(&[&["-netns", self.name()], words].concat()).await
    }

    /// Connects it with the namespace of this process. Returns both addresses, the inner one first.
    pub async fn connect_host(&self, name: &str, subnet: [u8; 3]) -> anyhow::Result<(Ipv4Addr, Ipv4Addr)> {
        let (outer, inner) = (format!("{name}o"), format!("{name}i"));
        let [a, b, c] = subnet;
        let addresses = (Ipv4Addr::new(a, b, c, 1), Ipv4Addr::new(a, b, c, 2));
        ip(&["link", "add", &outer, "type", "veth", "peer", "name", &inner, "netns", self.name()]).await?;
        ip(&["address", "add", &format!("{}/30", addresses.1), "dev", &outer]).await?;
        ip(&["link", "set", &outer, "up"]).await?;
        self.ip(&["address", "add", &format!("{}/30", addresses.0), "dev", &inner]).await?;
        self.ip(&["link", "set", &inner, "up"]).await?;
        Ok(addresses)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // Its interfaces end with it, and with them their peers.
        let _ = std::process::Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

impl Link {
    /// Connects two namespaces.
    pub async fn new(
        name: &str,
        one: &Namespace,
        other: &Namespace,
        subnet: [u8; 3],
    ) -> anyhow::Result<Self> {
        let [a, b, c] = subnet;
        let addresses = (Ipv4Addr::new(a, b, c, 1), Ipv4Addr::new(a, b, c, 2));
        let words = ["link", "add", name, "netns", one.name(), "type", "veth", "peer", "name", name];
        ip(&[&words[..], &["netns", other.name()]].concat()).await?;
        for (end, address) in [(one, addresses.0), (other, addresses.1)] {
            end.ip(&["address", "add", &format!("{address}/30"), "dev", name]).await?;
            end.ip(&["link", "set", name, "up"]).await?;
        }
        Ok(Self { one: one.clone(), other: other.clone(), name: name.to_owned(), addresses })
    }

    /// Cuts it. What is sent from now on is lost; nothing is reset.
    pub async fn cut(&self, cut: Cut) -> anyhow::Result<()> {
        match cut {
            Cut::Down => self.one.ip(&["link", "set", &self.name, "down"]).await,
            Cut::Astray => {
                for (end, peer) in [(&self.one, self.addresses.1), (&self.other, self.addresses.0)] {
                    let (peer, words) = (peer.to_string(), ["lladdr", NOBODY, "dev", &self.name]);
                    end.ip(&[&["neigh", "replace", &peer], &words[..], &["nud", "permanent"]].concat())
                        .await?;
                }
                Ok(())
            }
        }
    }

    /// Repairs it.
    pub async fn repair(&self, cut: Cut) -> anyhow::Result<()> {
        match cut {
            Cut::Down => self.one.ip(&["link", "set", &self.name, "up"]).await,
            Cut::Astray => {
                for (end, peer) in [(&self.one, self.addresses.1), (&self.other, self.addresses.0)] {
                    end.ip(&["neigh", "delete", &peer.to_string(), "dev", &self.name]).await?;
                }
                Ok(())
            }
        }
    }
}

async fn ip(words: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip").args(words).stdin(Stdio::null()).output().await;
    let output = output.context("ip (package iproute2) cannot be run")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {said}", words.join(" "));
    Ok(())
}
