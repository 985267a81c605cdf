//! Addresses that organizations choose: which are refused, and that a refused one is never connected to.

use std::{net::TcpListener, sync::Arc, time::Duration};

use reqwest::{Method, header::HeaderMap};
use sojourn::net::{self, Client, Denied, Policy, Refused, refusal};
use tokio::{io::AsyncReadExt, time::timeout};
use url::Url;

use crate::fake::{
    receiver::{Receiver, Reply},
    resolver::Script,
};

fn guarded() -> Policy {
    Policy::default()
}

fn at_home() -> Policy {
    Policy { allow_private: true, ..Policy::default() }
}

/// Spellings of an address that is not public, and ways to smuggle one in. A listener that must not be
/// reached is at `PORT`.
const SPELLINGS: &str = "
    https://127.0.0.1:PORT/ https://127.0.0.1.:PORT/ https://127.1:PORT/ https://127.0.1:PORT/
    https://2130706433:PORT/ https://017700000001:PORT/ https://0x7f000001:PORT/ https://0x7f.1:PORT/
    https://0177.0.0.1:PORT/ https://0177.0.0.01:PORT/ https://0x7f.0x0.0x0.0x1:PORT/ https://127.0.0.0x1:PORT/
    https://00000177.0.0.1:PORT/ https://127.255.255.254:PORT/ https://127%2e0%2e0%2e1:PORT/
    https://１２７.０.０.１:PORT/ https://①②⑦.⓪.⓪.①:PORT/ https://127。0。0。1:PORT/ https:127.0.0.1:PORT/
    https:\\\\127.0.0.1:PORT\\ https:///127.0.0.1:PORT/ HTTPS://127.0.0.1:PORT/ https://0:PORT/
    https://0.0.0.0:PORT/ https://00:PORT/ https://[::1]:PORT/ https://[0:0:0:0:0:0:0:1]:PORT/
    https://[::]:PORT/ https://[::ffff:127.0.0.1]:PORT/ https://[::ffff:7f00:1]:PORT/
    https://[0:0:0:0:0:ffff:127.0.0.1]:PORT/ https://[::127.0.0.1]:PORT/ https://[64:ff9b::127.0.0.1]:PORT/
    https://[64:ff9b::a9fe:a9fe]/ https://[64:ff9b:1::7f00:1]:PORT/ https://[2002:7f00:1::]:PORT/
    https://[2002:a9fe:a9fe::]/ https://[2001:0:7f00:1::]:PORT/ https://[2001:db8::1]/ https://[fe80::1]/
    https://[fc00::1]/ https://[fd00:ec2::254]/ https://[fec0::1]/ https://[ff02::1]/ https://[100::1]/
    https://[5f00::1]/ https://[3fff::1]/ https://10.0.0.1/ https://10.1/ https://0xa000001/ https://012.0.0.1/
    https://172.16.0.1/ https://172.31.255.255/ https://192.168.1.1/ https://192.168.257/ https://3232235777/
    https://100.64.0.1/ https://169.254.169.254/latest/meta-data/ https://0xa9fea9fe/ https://2852039166/
    https://0251.0376.0251.0376/ https://192.0.0.192/ https://192.0.2.1/ https://192.88.99.1/ https://198.18.0.1/
    https://198.51.100.1/ https://203.0.113.1/ https://224.0.0.1/ https://255.255.255.255/ https://4294967295/
    https://168.63.129.16/ https://localhost:PORT/ https://localhost.:PORT/ https://LOCALHOST:PORT/
    https://api.localhost:PORT/ https://api.localhost.:PORT/ https://ⓛocalhost:PORT/
    https://receiver.example@127.0.0.1:PORT/ https://127.0.0.1:PORT#@receiver.example/
    https://user@receiver.example/ https://user:password@receiver.example/ https://:password@receiver.example/
    https://127.0.0.1%3APORT@receiver.example/ https://receiver.example:0/
    http://127.0.0.1:PORT/ http://receiver.example/ http://93.184.215.14/ ws://receiver.example/ ftp://receiver.example/
    file:///etc/passwd unix:///run/socket gopher://127.0.0.1:PORT/ data:text/plain,x javascript:x
    https://127.0.0.1:99999/ https://256.256.256.256/ https://1.2.3.4.5/ https://[::1/ https://[fe80::1%25eth0]/
    https:// https://. //127.0.0.1:PORT/ 127.0.0.1:PORT localhost receiver.example/ https://hooks.exa%00mple/
";

/// Addresses that a name may resolve to and that must not be called.
const NOT_PUBLIC: &str = "127.0.0.1 10.0.0.7 172.20.0.1 192.168.0.1 100.64.0.9 169.254.169.254 0.0.0.0 224.0.0.1
    255.255.255.255 ::1 :: ::ffff:127.0.0.1 ::127.0.0.1 64:ff9b::7f00:1 2002:7f00:1:: 2001::1 fe80::1 fd00::1 ff02::1";

#[tokio::test]
async fn no_spelling_of_a_private_address_is_connected_to() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    listener.set_nonblocking(true).expect("a socket");
    let port = listener.local_addr().expect("a bound listener").port().to_string();
    let resolver = Script::new(&["127.0.0.1"]);
    let client = Client::new(guarded(), Arc::clone(&resolver) as _);
    let mut count = 0;
    for spelling in SPELLINGS.split_whitespace() {
        let text = spelling.replace("PORT", &port);
        let refused = net::parse(&text).and_then(|url| client.request(Method::GET, &url).map(drop));
        assert!(refused.is_err(), "{text} was not refused");
        count += 1;
    }
    assert!(count > 100, "{count} spellings");
    assert_eq!(resolver.questions(), 0, "a literal address needs no DNS");
    assert!(listener.accept().is_err(), "something connected");
}

#[tokio::test]
async fn a_name_of_a_private_address_is_not_connected_to() {
    let receiver = Receiver::start([]).await;
    for ip in NOT_PUBLIC.split_whitespace() {
        let resolver = Script::new(&[ip]);
        let client = Client::new(guarded(), Arc::clone(&resolver) as _);
        let url = net::parse(&format!("https://receiver.example:{}/", receiver.port())).expect("a URL");
        assert_eq!(client.check(&url), Ok(()), "only its addresses can decide");
        let error = client.request(Method::GET, &url).expect("a name").send().await.expect_err("not public");
        let expected = Refused::Address { host: "receiver.example".to_owned() };
        assert_eq!(refusal(&error), Some(&expected), "{ip}: {error:?}");
        assert!(
            !refusal(&error).expect("a refusal").to_string().contains(ip),
            "the DNS answer is not revealed"
        );
        assert_eq!(resolver.questions(), 1, "{ip} is resolved once");
    }
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn a_name_that_does_not_exist_looks_like_one_that_is_private() {
    let client = Client::new(guarded(), Script::new(&[""]));
    let url = net::parse("https://receiver.example/").expect("a URL");
    let error = client.request(Method::GET, &url).expect("a name").send().await.expect_err("no address");
    assert_eq!(refusal(&error), Some(&Refused::Address { host: "receiver.example".to_owned() }));
}

#[tokio::test]
async fn a_name_that_moves_is_vetted_again_at_every_connection() {
    // Status 200 over a connection that the receiver closes: the next request has to connect, and so to
    // resolve, again.
    let mut receiver = Receiver::start([Reply::Cut]).await;
    let resolver = Script::new(&["127.0.0.1", "169.254.169.254 93.184.215.14 ::ffff:127.0.0.1"]);
    let client = Client::new(at_home(), Arc::clone(&resolver) as _);
    let url = net::parse(&format!("http://rebind.example:{}/", receiver.port())).expect("a URL");
    let get = || client.request(Method::GET, &url).expect("a name").send();
    let first = get().await.expect("private is allowed here");
    assert!(first.bytes().await.is_err(), "the receiver cuts its response");
    assert_eq!(receiver.next().await.path, "/");
    let error = get().await.expect_err("neither metadata services nor public plain http");
    assert!(refusal(&error).is_some(), "{error:?}");
    assert_eq!(resolver.questions(), 2, "one lookup for each connection");
    assert_eq!(receiver.connections(), 1);
}

#[tokio::test]
async fn of_several_addresses_only_those_that_may_be_called_are_tried() {
    let mut receiver = Receiver::start([]).await;
    let client = Client::new(at_home(), Script::new(&["169.254.169.254 fe80::1 127.0.0.1"]));
    let url = net::parse(&format!("http://mixed.example:{}/", receiver.port())).expect("a URL");
    let answer = client.request(Method::GET, &url).expect("a name").send().await.expect("one is left");
    assert!(answer.status().is_success());
    receiver.next().await;
}

#[tokio::test]
async fn where_private_is_allowed_the_public_still_needs_https_and_metadata_stays_shut() {
    let client = Client::new(at_home(), Script::new(&["93.184.215.14"]));
    let refused = |text: &str| client.check(&net::parse(text).expect("a URL")).expect_err(text);
    assert_eq!(refused("http://93.184.215.14/"), Refused::PlainToPublic);
    for text in
        ["http://169.254.169.254/", "http://[::ffff:10.0.0.1]/", "https://[fd00:ec2::254]/", "http://0/"]
    {
        assert!(matches!(refused(text), Refused::Address { .. }), "{text}");
    }
    for text in
        ["http://127.0.0.1/", "http://[::1]/", "https://10.0.0.1/", "http://localhost/", "https://1.1.1.1/"]
    {
        assert_eq!(client.check(&net::parse(text).expect("a URL")), Ok(()), "{text}");
    }
    let url = net::parse("http://public.example/").expect("a URL");
    let error =
        client.request(Method::GET, &url).expect("a name").send().await.expect_err("plain to the public");
    assert!(refusal(&error).is_some(), "{error:?}");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let other = Receiver::start([]).await;
    let receiver = Receiver::start([Reply::Redirect(other.url())]).await;
    let client = Client::new(at_home(), Script::new(&[""]));
    let answer =
        client.request(Method::GET, &receiver.url()).expect("private").send().await.expect("an answer");
    assert_eq!(answer.status().as_u16(), 307);
    assert_eq!(other.connections(), 0);
}

#[tokio::test]
async fn a_client_within_an_origin_follows_only_what_repeats_the_request_there() {
    let other = Receiver::start([]).await;
    let away = Receiver::start([Reply::Redirect(other.url())]).await;
    let client = Client::within_origin(at_home(), Script::new(&[""]));
    let post = async |url: Url| client.request(Method::POST, &url).expect("private").body("x").send().await;
    let error = post(away.url()).await.expect_err("another port is another origin");
    assert_eq!(refusal(&error), Some(&Refused::Redirect));
    assert_eq!(other.connections(), 0);

    let to_itself = |headers: &HeaderMap| {
        let host = headers["host"].to_str().expect("an address");
        Reply::Redirect(Url::parse(&format!("http://{host}/moved")).expect("a URL"))
    };
    let mut count = 0;
    let mut home = Receiver::choosing(move |headers| {
        count += 1;
        if count == 1 { to_itself(headers) } else { Reply::Status(204) }
    })
    .await;
    assert_eq!(post(home.url()).await.expect("an answer").status().as_u16(), 204);
    home.next().await;
    let followed = home.next().await;
    assert_eq!((followed.path.as_str(), &*followed.body), ("/moved", &b"x"[..]));

    let mut circle = Receiver::choosing(to_itself).await;
    assert_eq!(post(circle.url()).await.expect("an answer").status().as_u16(), 307);
    for _ in 0..4 {
        circle.next().await;
    }
    assert!(timeout(Duration::from_millis(200), circle.next()).await.is_err(), "three are followed");
}

#[tokio::test]
async fn tls_names_the_host_and_offers_http_2_at_the_vetted_address() {
    net::install_tls();
    net::install_tls();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let port = listener.local_addr().expect("a bound listener").port();
    let client = Client::new(at_home(), Script::new(&["127.0.0.1"]));
    let url = net::parse(&format!("https://secure.example:{port}/")).expect("a URL");
    let request = client.request(Method::GET, &url).expect("a name").send();
    let hello = async {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut head = [0; 5];
        stream.read_exact(&mut head).await.expect("a TLS record");
        let mut record = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
        stream.read_exact(&mut record).await.expect("the rest of it");
        (head[0], record)
    };
    let (answer, (kind, record)) = tokio::join!(request, hello);
    assert!(answer.is_err(), "nobody answered the handshake");
    assert_eq!(kind, 22, "a handshake record (RFC 8446)");
    let offers = |what: &[u8]| record.windows(what.len()).any(|part| part == what);
    assert!(offers(b"secure.example") && offers(b"\x02h2") && offers(b"\x08http/1.1"));
}

#[test]
fn a_url_that_is_too_long_is_refused_before_it_is_read() {
    let text = format!("https://receiver.example/{}", "a".repeat(3_000));
    assert_eq!(net::parse(&text), Err(Refused::TooLong));
}

#[tokio::test]
async fn urls_of_the_operator_may_lead_anywhere() {
    let mut receiver = Receiver::start([]).await;
    let client = Client::trusted(Script::new(&["127.0.0.1"]));
    let url = net::parse(&format!("http://gateway.internal:{}/v1", receiver.port())).expect("a URL");
    client.request(Method::GET, &url).expect("a name").send().await.expect("an answer");
    assert_eq!(receiver.next().await.path, "/v1");
    let url = net::parse("ftp://gateway.internal/").expect("a URL");
    assert_eq!(client.check(&url), Err(Refused::NotHttps));
}

#[tokio::test]
async fn networks_that_the_operator_denies_are_not_connected_to() {
    let receiver = Receiver::start([]).await;
    let denied = Denied::new(vec!["127.0.0.0/8".parse().expect("a network")]);
    let client = Client::new(Policy { allow_private: true, denied }, Script::new(&["127.0.0.1"]));
    let literal = net::parse(&format!("http://127.0.0.1:{}/", receiver.port())).expect("a URL");
    assert!(matches!(client.check(&literal), Err(Refused::Address { .. })));
    let named = net::parse(&format!("http://denied.example:{}/", receiver.port())).expect("a URL");
    let error = client.request(Method::GET, &named).expect("a name").send().await.expect_err("denied");
    assert!(refusal(&error).is_some(), "{error:?}");
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn public_addresses_of_this_machine_are_not_connected_to() {
    let own = || Ok(vec!["93.184.215.14/32".parse().expect("a network")]);
    let client = |allow_private| {
        let policy = Policy { allow_private, denied: Denied::with(Vec::new(), own) };
        Client::new(policy, Script::new(&["93.184.215.14"]))
    };
    let literal = net::parse("https://93.184.215.14/").expect("a URL");
    assert!(matches!(client(false).check(&literal), Err(Refused::Address { .. })));
    assert_eq!(client(true).check(&literal), Ok(()), "this machine's addresses are allowed there");
    let named = net::parse("https://own.example/").expect("a URL");
    let error = client(false).request(Method::GET, &named).expect("a name").send().await.expect_err("own");
    assert!(refusal(&error).is_some(), "no connection was tried: {error:?}");
}
