// Untrusted text of agents, organizations and programs. It never becomes markup of this page: Markdown
// becomes elements, raw HTML stays text, links open in a new tab without a referrer.
import { memo } from "react";
import Markdown, { type Components } from "react-markdown";
import gfm from "remark-gfm";

const components: Components = {
  a: ({ children, href }) => (
    <a href={href} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  ),
  // An image would tell a foreign server who reads this page.
  img: ({ alt, src }) => <span className="quiet">[image: {alt || String(src ?? "")}]</span>,
};

const SAFE = /^(https?:|mailto:)/i;

export const Prose = memo(function Prose({ text }: { text: string }) {
  return (
    <div className="prose">
      <Markdown remarkPlugins={[gfm]} components={components} urlTransform={(url) => (SAFE.test(url) ? url : "")}>
        {text}
      </Markdown>
    </div>
  );
});

// Invisible characters, and characters that change the direction of text. With them a name or a line of code
// can look like another one.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Replaces each such character by its code point. */
export function visible(text: string): string {
  const code = (character: string) => `⟨U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  return text.replaceAll("\r\n", "\n").replace(UNSEEN, code);
}

/** Output of a program. A diff is colored. */
export const Output = memo(function Output({ text, label }: { text: string; label: string }) {
  const lines = text.split("\n");
  const isDiff = lines.some((line) => line.startsWith("@@ ")) && lines.some((line) => /^(\+\+\+|---) /.test(line));
  return (
    <pre className="output" tabIndex={0} role="region" aria-label={label}>
      {isDiff ? lines.map((line, at) => <DiffLine key={at} line={line} />) : text}
    </pre>
  );
});

function DiffLine({ line }: { line: string }) {
  const kind = line.startsWith("@@") ? "at" : line.startsWith("+") ? "add" : line.startsWith("-") ? "cut" : undefined;
  return <span data-diff={kind}>{`${line}\n`}</span>;
}

/** Any value as JSON. */
export function Json({ value, label }: { value: unknown; label: string }) {
  return <Output text={JSON.stringify(value, null, 2) ?? "null"} label={label} />;
}
