//! Files from addresses that callers name.

use bytes::{Bytes, BytesMut};
use reqwest::{Method, header};
use tokio::time::timeout;
use url::Url;

use super::Error;
use crate::{
    base::limit::{FILE_BYTES_MAX, FILE_FETCH_TIMEOUT},
    net,
};

/// Redirects that are followed, each to an address that is checked like the first one.
const REDIRECTS_MAX: usize = 5;

/// Fetches a file. Returns the name that its address ends with, and its bytes.
///
/// # Errors
/// `Refused` for an address that may not be reached, an answer other than 200, a file that is too large, and one that
/// does not arrive in time.
pub async fn fetch(client: &net::Client, address: &str) -> Result<(String, Bytes), Error> {
    let refused = |words: String| Error::Refused(words);
    match timeout(FILE_FETCH_TIMEOUT, follow(client, address)).await {
        Ok(fetched) => fetched.map_err(refused),
        Err(_) => {
            Err(refused(format!("the file did not arrive within {} seconds", FILE_FETCH_TIMEOUT.as_secs())))
        }
    }
}

async fn follow(client: &net::Client, address: &str) -> Result<(String, Bytes), String> {
    let mut url = net::parse(address).map_err(|refused| refused.to_string())?;
    for _ in 0..=REDIRECTS_MAX {
        let request = client.request(Method::GET, &url).map_err(|refused| refused.to_string())?;
        let response = request.send().await.map_err(|error| match net::refusal(&error) {
            Some(refused) => refused.to_string(),
            None => "the server of the file cannot be reached".to_owned(),
        })?;
        if response.status().is_redirection() {
            let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            let target = location.and_then(|location| url.join(location).ok());
            let target = target.ok_or("the server of the file redirects to nothing")?;
            url = net::parse(target.as_str()).map_err(|refused| refused.to_string())?;
            continue;
        }
        if response.status() != 200 {
            return Err(format!("the server of the file answered {}", response.status().as_u16()));
        }
        return Ok((name_of(&url), read(response).await?));
    }
    Err(format!("the server of the file redirects more than {REDIRECTS_MAX} times"))
}

async fn read(mut response: reqwest::Response) -> Result<Bytes, String> {
    let mut content = BytesMut::new();
    loop {
        let part =
            response.chunk().await.map_err(|_| "the server of the file stopped before its end".to_owned())?;
        let Some(part) = part else { return Ok(content.freeze()) };
        if content.len() + part.len() > FILE_BYTES_MAX {
            return Err(format!("the file has more than {} MiB", FILE_BYTES_MAX >> 20));
        }
        content.extend_from_slice(&part);
    }
}

fn name_of(url: &Url) -> String {
    let last = url.path_segments().and_then(Iterator::last).unwrap_or_default();
    last.to_owned()
}
