//! Grants: what a worker may ask of a node agent, signed by the deployment.
//!
//! An agent has no secret of the deployment. It knows the public key of its grants (Ed25519, RFC 8032), and
//! carries out only calls with a grant that names this node, and the session, organization, sandbox and epoch that
//! the call concerns. So a connection to the agent alone, or the certificate of a worker alone, is of no use.

use std::{collections::HashMap, sync::Mutex};

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    base::{
        Origin, Timestamp,
        limit::{GRANT_CLOCK_SKEW, GRANT_LIFETIME, GRANTS_KEPT_MAX},
        text,
    },
    domain::{OrgId, SandboxId, SessionId},
    sandbox::{Fault, SandboxFence},
};

/// Sandbox or node that a grant is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Scope {
    /// Upkeep of the node: its state, its images, removal of what nobody owns.
    Node,
    /// One sandbox of a session, under a lease.
    Sandbox { org: OrgId, session: SessionId, sandbox: SandboxId, epoch: i64 },
}

impl From<SandboxFence> for Scope {
    fn from(fence: SandboxFence) -> Self {
        let SandboxFence { org, session, sandbox, epoch } = fence;
        Self::Sandbox { org, session, sandbox, epoch }
    }
}

/// A grant before it is signed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Grant {
    /// The node; none for the first question, which node it is.
    pub node: Option<Uuid>,
    pub scope: Scope,
    /// Unix time in seconds.
    pub expires_at: i64,
}

/// A grant as it is sent: the JSON that was signed, and the signature in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignedGrant {
    pub grant: String,
    pub signature: String,
}

/// The key with which a deployment signs its grants.
pub struct GrantKey {
    pair: Ed25519KeyPair,
    origin: Origin,
    /// Grants that were signed before, and until when they are used.
    kept: Mutex<HashMap<Named, (SignedGrant, Timestamp)>>,
}

/// The node and what the grant is for.
type Named = (Option<Uuid>, Scope);

impl GrantKey {
    /// The key of a secret.
    pub fn of(secret: &[u8; 32], origin: &Origin) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(secret).expect("every 32 bytes are an Ed25519 seed");
        Self { pair, origin: origin.clone(), kept: Mutex::default() }
    }

    /// The public key, 64 hexadecimal characters.
    pub fn public(&self) -> String {
        text::hex(self.pair.public_key().as_ref())
    }

    pub(super) fn sign(&self, node: Option<Uuid>, scope: Scope) -> SignedGrant {
        let now = self.origin.now();
        let mut kept = self.kept.lock().expect("no code panics while it holds the lock of the grants");
        let key = (node, scope);
        if let Some((signed, _)) = kept.get(&key).filter(|(_, until)| *until > now) {
            return signed.clone();
        }
        let grant = Grant { node, scope: key.1.clone(), expires_at: (now + GRANT_LIFETIME).unix_timestamp() };
        let grant = serde_json::to_string(&grant).expect("a grant is JSON");
        let signed = SignedGrant { signature: text::hex(self.pair.sign(grant.as_bytes()).as_ref()), grant };
        if kept.len() >= GRANTS_KEPT_MAX {
            kept.clear();
        }
        kept.insert(key, (signed.clone(), now + GRANT_LIFETIME / 2));
        signed
    }
}

impl std::fmt::Debug for GrantKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GrantKey")
    }
}

/// Checks grants for one node.
#[derive(Debug)]
pub(crate) struct GrantCheck {
    node: Uuid,
    public_key: Vec<u8>,
    /// Grants whose signature was checked before.
    kept: Mutex<HashMap<SignedGrant, Grant>>,
}

impl GrantCheck {
    /// Checks grants against a public key of 64 hexadecimal characters; `None` if it is none.
    pub(crate) fn new(node: Uuid, public_key: &str) -> Option<Self> {
        let public_key = text::unhex(public_key.trim()).filter(|key| key.len() == 32)?;
        Some(Self { node, public_key, kept: Mutex::default() })
    }

    /// Returns what a grant is for.
    ///
    /// # Errors
    /// `Unavailable`: not signed by the deployment, of another node, or expired.
    pub(crate) fn check(&self, signed: &SignedGrant, now: Timestamp) -> Result<Grant, Fault> {
        let kept = || self.kept.lock().expect("no code panics while it holds the lock of the grants");
        let known = kept().get(signed).cloned();
        let grant = match known {
            Some(grant) => grant,
            None => {
                let grant =
                    self.verified(signed).ok_or_else(|| refused("it is not signed by its deployment"))?;
                let mut kept = kept();
                if kept.len() >= GRANTS_KEPT_MAX {
                    kept.clear();
                }
                kept.insert(signed.clone(), grant.clone());
                grant
            }
        };
        let now = now.unix_timestamp();
        let skew = GRANT_CLOCK_SKEW.as_secs().cast_signed();
        if grant.expires_at + skew < now
            || grant.expires_at - skew > now + GRANT_LIFETIME.as_secs().cast_signed()
        {
            return Err(refused("it has expired, or the clocks of the machines differ"));
        }
        if grant.node.is_some_and(|node| node != self.node) {
            return Err(refused("it is for another node"));
        }
        Ok(grant)
    }

    fn verified(&self, signed: &SignedGrant) -> Option<Grant> {
        let key = UnparsedPublicKey::new(&ED25519, &self.public_key);
        key.verify(signed.grant.as_bytes(), &text::unhex(&signed.signature)?).ok()?;
        serde_json::from_str(&signed.grant).ok()
    }
}

fn refused(reason: &str) -> Fault {
    Fault::Unavailable(format!("the node agent refuses the grant: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_for_one_node_one_deployment_and_a_while() {
        let origin = Origin::system();
        let (node, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let (key, stranger) = (GrantKey::of(&[1; 32], &origin), GrantKey::of(&[2; 32], &origin));
        let check = GrantCheck::new(node, &key.public()).unwrap();
        let now = origin.now();
        let scope = Scope::Sandbox { org: origin.id(), session: origin.id(), sandbox: origin.id(), epoch: 7 };
        let signed = key.sign(Some(node), scope.clone());
        assert_eq!(key.sign(Some(node), scope.clone()), signed, "kept");
        assert_eq!(check.check(&signed, now).unwrap().scope, scope);
        assert_eq!(check.check(&signed, now).unwrap().scope, scope, "known");
        assert!(check.check(&signed, now + GRANT_LIFETIME).is_ok(), "clocks differ a little");
        for (signed, at) in [
            (key.sign(Some(other), scope.clone()), now),
            (stranger.sign(Some(node), scope.clone()), now),
            (signed.clone(), now + 2 * GRANT_LIFETIME),
            (signed.clone(), now - GRANT_LIFETIME),
            (
                SignedGrant { grant: signed.grant.replace("\"epoch\":7", "\"epoch\":8"), ..signed.clone() },
                now,
            ),
            (SignedGrant { signature: "00".repeat(64), ..signed.clone() }, now),
            (SignedGrant { signature: String::new(), ..signed }, now),
        ] {
            assert!(matches!(check.check(&signed, at), Err(Fault::Unavailable(_))), "{signed:?}");
        }
        assert!(GrantCheck::new(node, "00").is_none() && GrantCheck::new(node, "no key").is_none());
    }
}
