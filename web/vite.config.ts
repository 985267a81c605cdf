// Builds the dashboard into dist/, from where the binary embeds it.
import { readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { defineConfig, type Plugin } from "vite";
import react from "@vitejs/plugin-react";

/** Empties dist/ but for its .gitignore: the directory must be there for a build without Node. */
function cleared(): Plugin {
  return {
    name: "cleared",
    apply: "build",
    buildStart() {
      for (const name of readdirSync("dist")) {
        if (name !== ".gitignore") rmSync(`dist/${name}`, { recursive: true });
      }
    },
  };
}

/** Writes each text once more, packed: the service sends it so to whoever takes it. Fonts are packed already. */
function packed(): Plugin {
  return {
    name: "packed",
    apply: "build",
    writeBundle(_, files) {
      for (const name of Object.keys(files).filter((name) => !name.endsWith(".woff2"))) {
        writeFileSync(`dist/${name}.gz`, gzipSync(readFileSync(`dist/${name}`), { level: 9 }));
      }
    },
  };
}

export default defineConfig({
  plugins: [react(), cleared(), packed()],
  // Nothing inline: the service's Content-Security-Policy forbids it.
  build: {
    emptyOutDir: false,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    // All pages together; it is read once, from a disk nearby.
    chunkSizeWarningLimit: 800,
  },
  // `npm run dev` beside a running service.
  server: { host: "127.0.0.1", proxy: { "/v3": process.env.SOJOURN_URL ?? "http://127.0.0.1:8080" } },
});
