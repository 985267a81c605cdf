//! Settings of node agents: where one listens, where a worker finds it, and how they know each other.

use std::path::PathBuf;

use clap::Args;

use crate::sandbox::node::{NodeAddress, TlsFiles};

/// Settings of a node agent and of its workers.
#[derive(Clone, Debug, Args)]
pub struct NodeAgent {
    /// Node agents that make the sandboxes of this worker, separated by commas: unix:/PATH or HOST:PORT; the latter
    /// needs SOJOURN_NODE_TLS_* [default: this process makes them]
    #[arg(long, env = "SOJOURN_NODE", value_name = "ADDRESS", value_delimiter = ',')]
    pub node: Vec<NodeAddress>,

    /// Address of the role `node`: unix:/PATH or HOST:PORT
    #[arg(
        long,
        default_value = "unix:/run/sojourn/node.sock",
        env = "SOJOURN_NODE_LISTEN",
        value_name = "ADDRESS"
    )]
    pub node_listen: NodeAddress,

    /// User who may open the unix socket of the role `node` [default: the one that runs it]
    #[arg(long, env = "SOJOURN_NODE_SOCKET_USER", value_name = "USER")]
    pub node_socket_user: Option<String>,

    /// Process id of the service that this agent ends with. Set by a service that separates its privileges.
    #[arg(long, hide = true)]
    pub service_child_pid: Option<u32>,

    /// Process id of the agent that this service ends with.
    #[arg(long, hide = true)]
    pub agent_parent_pid: Option<u32>,

    /// File with the public key of the deployment's grants, which the service writes as `grant-key` into its data
    /// directory: copy it to the node [default: grant-key in the data directory]
    #[arg(long, env = "SOJOURN_GRANT_KEY_FILE", value_name = "FILE")]
    pub grant_key_file: Option<PathBuf>,

    /// PEM file with the certificate that this process shows to workers or to its node agent
    #[arg(long, env = "SOJOURN_NODE_TLS_CERTIFICATE", value_name = "FILE")]
    pub node_tls_certificate: Option<PathBuf>,

    /// PEM file with the key of that certificate
    #[arg(long, env = "SOJOURN_NODE_TLS_KEY", value_name = "FILE")]
    pub node_tls_key: Option<PathBuf>,

    /// PEM file with the authority of the certificates of node agents and workers; one that signs nothing else
    #[arg(long, env = "SOJOURN_NODE_TLS_AUTHORITY", value_name = "FILE")]
    pub node_tls_authority: Option<PathBuf>,
}

impl NodeAgent {
    /// The files of TLS, if all are set.
    pub fn tls(&self) -> Option<TlsFiles> {
        Some(TlsFiles {
            certificate: self.node_tls_certificate.clone()?,
            key: self.node_tls_key.clone()?,
            authority: self.node_tls_authority.clone()?,
        })
    }

    pub(super) fn problems(&self, is_node: bool) -> Vec<String> {
        let mut problems = Vec::new();
        let set = [&self.node_tls_certificate, &self.node_tls_key, &self.node_tls_authority];
        if set.iter().any(|file| file.is_some()) && self.tls().is_none() {
            let text = "SOJOURN_NODE_TLS_CERTIFICATE, SOJOURN_NODE_TLS_KEY and SOJOURN_NODE_TLS_AUTHORITY are set together";
            problems.push(text.to_owned());
        }
        let used = if is_node { std::slice::from_ref(&self.node_listen) } else { &self.node };
        let is_tls = |address: &&NodeAddress| matches!(address, NodeAddress::Tls { .. });
        if let Some(address) = used.iter().find(is_tls)
            && self.tls().is_none()
        {
            problems.push(format!("the address {address} of a node agent needs SOJOURN_NODE_TLS_*"));
        }
        if is_node && !self.node.is_empty() {
            problems.push("SOJOURN_NODE is for workers; the role node has SOJOURN_NODE_LISTEN".to_owned());
        }
        problems
    }
}
