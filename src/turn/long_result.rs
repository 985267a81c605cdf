//! Results of MCP tools that are too long for the model: cut in the middle, with the whole in a file of the sandbox.

use tokio::time::timeout;

use crate::{
    base::limit::{MCP_RESULT_FILE_TIMEOUT, TOOL_OUTPUT_BYTES_MAX},
    lifecycle::LeasedSandbox,
    tool::{self, Call, CallResult, Fault},
};

/// Directory of the files.
const RESULTS: &str = "/home/agent/results";

/// Shortens a result that is too long for the model.
///
/// # Errors
/// `Stale`. Without a sandbox the rest is left out.
pub(super) async fn shortened(
    sandbox: &LeasedSandbox,
    call: &Call,
    result: CallResult,
) -> Result<CallResult, Fault> {
    if result.output.len() <= TOOL_OUTPUT_BYTES_MAX {
        return Ok(result);
    }
    let is_word = |character: &char| character.is_ascii_alphanumeric() || "_-".contains(*character);
    let name: String = call.id().chars().filter(is_word).collect();
    let path = format!("{RESULTS}/{name}.txt");
    let written = async {
        let _use = sandbox.begin_use();
        let handle = sandbox.acquire().await?;
        handle.sandbox.write_file(handle.fence, &path, result.output.as_bytes()).await.map_err(Fault::from)
    };
    // The server has answered: its answer must not be lost for a file.
    let advice = match timeout(MCP_RESULT_FILE_TIMEOUT, written).await {
        Ok(Ok(())) => format!("The whole result is in the file {path}."),
        Ok(Err(Fault::Stale)) => return Err(Fault::Stale),
        Ok(Err(_)) | Err(_) => "No file could be written for the rest; ask for less.".to_owned(),
    };
    Ok(CallResult { output: tool::shortened(&result.output, &advice), ..result })
}
