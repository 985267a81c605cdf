//! Configuration file of the command line: address of the service and API key.
//!
//! Lines of `NAME=value` with the names of the environment variables, so that `sojourn`, a shell and a unit
//! file can share it. The command line and environment variables take precedence.

use std::{env, fs, io::ErrorKind, path::PathBuf};

use anyhow::{Context, bail};

/// Contents of the file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct File {
    pub url: Option<String>,
    pub api_key: Option<String>,
}

impl File {
    /// Reads `$SOJOURN_CONFIG`, else `sojourn/env` in the user's config directory. The default file may be
    /// missing; a file named by `SOJOURN_CONFIG` must exist.
    pub(super) fn read() -> anyhow::Result<Self> {
        let named = env::var_os("SOJOURN_CONFIG").map(PathBuf::from);
        let Some(path) = named.clone().or_else(usual_place) else { return Ok(Self::default()) };
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text).with_context(|| format!("in {}", path.display())),
            Err(error) if error.kind() == ErrorKind::NotFound && named.is_none() => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
        }
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut file = Self::default();
        for (line, number) in text.lines().map(str::trim).zip(1..) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((name, value)) = line.split_once('=') else {
                bail!("line {number} is not NAME=value");
            };
            let value = value.trim().trim_matches('"').to_owned();
            match name.trim().trim_start_matches("export ") {
                "SOJOURN_URL" => file.url = Some(value),
                "SOJOURN_API_KEY" => file.api_key = Some(value),
                other => bail!("line {number} sets `{other}`; allowed are SOJOURN_URL and SOJOURN_API_KEY"),
            }
        }
        Ok(file)
    }
}

fn usual_place() -> Option<PathBuf> {
    let configuration = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let below = configuration.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".config")))?;
    Some(below.join("sojourn/env"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_names_a_service_and_a_key_and_nothing_else() {
        let text = "# mine\nexport SOJOURN_URL=\"https://agents.example.com\"\n\nSOJOURN_API_KEY = sjk_1\n";
        let file = File::parse(text).expect("a file");
        assert_eq!(file.url.as_deref(), Some("https://agents.example.com"));
        assert_eq!(file.api_key.as_deref(), Some("sjk_1"));
        for (wrong, line) in [("SOJOURN_URL", "line 1"), ("\nPATH=/bin", "line 2")] {
            assert!(File::parse(wrong).expect_err(wrong).to_string().contains(line));
        }
    }
}
