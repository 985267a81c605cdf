// A fetch whose first event stream is cut, as by a bad network.

/**
 * Wraps `fetch`: the body of the first stream ends in an error after `frames`
 * data frames. `streams` lists the URL of every requested stream.
 */
export function cutting(frames) {
  const streams = [];
  const wrapped = async (url, init) => {
    const response = await fetch(url, init);
    const isStream = response.headers.get("content-type")?.startsWith("text/event-stream");
    if (isStream) streams.push(new URL(url));
    if (!isStream || streams.length > 1) return response;
    const { status, headers } = response;
    return new Response(cutAfter(response.body, frames), { status, headers });
  };
  return { fetch: wrapped, streams };
}

function cutAfter(body, frames) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const encoder = new TextEncoder();
  let waiting = "";
  let given = 0;
  // No buffer in this stream: an error would discard frames that the client has not
  // read yet, and the cut would come too early.
  return new ReadableStream(
    {
      async pull(controller) {
        if (given >= frames) {
          await reader.cancel();
          return controller.error(new TypeError("the connection was cut on purpose"));
        }
        for (;;) {
          const end = waiting.indexOf("\n\n");
          if (end >= 0) {
            const frame = waiting.slice(0, end + 2);
            waiting = waiting.slice(end + 2);
            // A heartbeat is a comment, not a data frame.
            if (/^data:/m.test(frame)) given += 1;
            return controller.enqueue(encoder.encode(frame));
          }
          const { done, value } = await reader.read();
          if (done) return controller.close();
          waiting += decoder.decode(value, { stream: true });
        }
      },
      cancel: (reason) => reader.cancel(reason),
    },
    { highWaterMark: 0 },
  );
}
